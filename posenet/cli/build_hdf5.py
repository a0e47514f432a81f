"""Build a training store (.h5) from a folder of images and a COCO keypoint file, or look into one.

Images without a main person are left out. Prints what was stored; names every image that could not be read. Without
--images and --annotations, --verify, --stats and --preview look into the store that --output names.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from posenet.benchmark.report import format_table
from posenet.cli.options import add_config_options, positive, read_image_ids, share
from posenet.data.dataset import PoseDataset
from posenet.data.store.build import BuildReport, Summary, build_store, verify
from posenet.data.store.reader import Store
from posenet.data.store.statistics import common, survey
from posenet.data.targets import TargetRenderer
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.messages import pluralize
from posenet.settings import load_config
from posenet.skeleton.skeleton_file import BUILT_IN, load_skeleton
from posenet.visualization.training_samples import write_previews


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``build-hdf5``."""
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the images")
    parser.add_argument("--annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    parser.add_argument(
        "--skeleton",
        metavar="FILE",
        default=BUILT_IN,
        help="what the annotations name: a TOML file (docs/custom_data.md), or coco, the built-in one",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.h5", help="the store")
    parser.add_argument(
        "--workers", type=positive, metavar="N", default=usable_cores(), help="threads; the default is one per core"
    )
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=False, help="read the finished store from end to end"
    )
    parser.add_argument(
        "--stats", action=argparse.BooleanOptionalAction, default=False, help="count people, keypoints, sizes and masks"
    )
    parser.add_argument(
        "--preview",
        type=Path,
        metavar="DIR",
        help="draw training samples into this folder: augmented as --config or --set say, with the "
        "masks and the maps that the network is to answer",
    )
    parser.add_argument("--preview-count", type=positive, default=8, metavar="N", help="samples to draw")
    parser.add_argument(
        "--check-split",
        nargs=2,
        type=Path,
        metavar=("A.h5", "B.h5"),
        help="do nothing but look for images that two stores share, by id and by content; exit status "
        "2 where there are any",
    )
    parser.add_argument(
        "--image-ids", nargs="+", metavar="ID", help="store only these images: ids, or one text file of ids"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="store only the first N images that have a main person"
    )
    parser.add_argument(
        "--max-unreadable",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="fail when more than this share of the images (rounded up) cannot be read",
    )
    parser.add_argument(
        "--overwrite",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="replace an existing store, once the new one is complete",
    )
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Build a store, look into one, or both; or compare two."""
    if args.check_split:
        _check_split(*args.check_split)
        return
    if args.output is None:
        raise DataError("name the store with --output")
    building = args.images is not None and args.annotations is not None
    if not building and (args.images or args.annotations or not (args.verify or args.stats or args.preview)):
        raise DataError("give both --images and --annotations, or neither and --verify, --stats or --preview")
    if building:
        ids = None if args.image_ids is None else read_image_ids(args.image_ids)
        _print_report(
            build_store(
                args.images,
                args.annotations,
                args.output,
                image_ids=ids,
                limit=args.limit,
                workers=args.workers,
                max_unreadable=args.max_unreadable,
                overwrite=args.overwrite,
                skeleton=load_skeleton(args.skeleton),
                progress=True,
            )
        )
    if args.verify:
        summary = verify(args.output, workers=args.workers, progress=True)
        if not building:
            _print_summary(summary)
        print(f"{args.output} is sound")
    if args.stats or args.preview:
        with Store(args.output, skeleton=None) as store:
            _look_into(store, args)


def _look_into(store: Store, args: argparse.Namespace) -> None:
    if args.stats:
        for title, header, rows in survey(store):
            print(f"\n{title}\n{format_table(header, rows)}")
    if args.preview:
        config = load_config(args.config, args.overrides)
        config = replace(config, model=replace(config.model, skeleton=store.skeleton))
        dataset = PoseDataset(store, config.train.size, config.data.framing, config.augment, config.train.seed)
        paths = write_previews(dataset, TargetRenderer.from_config(config), args.preview, args.preview_count)
        print(f"drawn         {pluralize(len(paths), 'sample')}, {paths[0]} and so on")


def _check_split(first: Path, second: Path) -> None:
    with Store(first, skeleton=None) as a, Store(second, skeleton=None) as b:
        print(f"{first}: {pluralize(a.num_images, 'image')}; {second}: {pluralize(b.num_images, 'image')}")
        shared = common(a, b)
    print(f"the same id       {len(shared.ids)}{_first_few(shared.ids)}")
    print(f"the same content  {len(shared.contents)}{_first_few(shared.contents[:, 0])}")
    if len(shared.ids) or len(shared.contents):
        raise DataError(f"{first} and {second} share images; build them from separate splits or with --image-ids")


def _first_few(ids: np.ndarray) -> str:
    return f"  ({', '.join(map(str, ids[:5].tolist()))}{', ...' if len(ids) > 5 else ''})" if len(ids) else ""


def _print_summary(summary: Summary) -> None:
    megabytes, ratio = summary.file_bytes / 1e6, summary.file_bytes / summary.image_bytes
    print(f"images        {summary.images}")
    print(f"people        {summary.people}")
    print(f"main persons  {summary.samples}")
    print(f"size          {megabytes:.1f} MB, {ratio:.3f} x the images")


def _print_report(report: BuildReport) -> None:
    _print_summary(report.summary)
    print(f"crowds        {report.crowds}")
    print(f"left out      {report.left_out} images without a main person")
    if report.boxes:
        print(f"boxes         {report.boxes} people without a usable outline; their box is the mask")
    print(f"skipped       {len(report.skipped)} unreadable images")
    for line in report.skipped:
        print(f"  {line}")
    print(f"time          {report.seconds:.1f} s")
