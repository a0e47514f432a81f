"""Build a training store (.h5) from a folder of images and a COCO keypoint file, or inspect one.

Images without a main person are left out, except with --background those without any annotation. The tool prints
counts and names every image that could not be read. With --unlabelled it stores all images of the folder without
annotations, for training with a teacher (docs/training.md). Without --images and --annotations, the flags --verify,
--stats and --preview inspect the store that --output names, or the data sets of data.train in --config or --set.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import chain
from pathlib import Path

from posenet.annotations.coco import list_image_files
from posenet.annotations.people import describe_others
from posenet.cli.main import print_message
from posenet.cli.options import (
    add_config_options,
    add_image_ids,
    add_overwrite_option,
    add_switch,
    fraction,
    input_files,
    positive_int,
    read_image_ids,
)
from posenet.data.build import MAX_UNREADABLE, BuildReport, build_store
from posenet.data.store import Store, compute_statistics, verify_store
from posenet.data.store_list import count_background, open_data_sets, require_store_files
from posenet.errors import DataError
from posenet.files import check_outputs
from posenet.images import find_images
from posenet.messages import pluralize, to_single_line
from posenet.settings import Config, load_config
from posenet.skeleton.skeleton_file import BUILT_IN
from posenet.threads import usable_cores
from posenet.visualization.sheets import preview_paths, write_previews


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``build-hdf5``."""
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of the images")
    add("--annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    add_switch(parser, "--unlabelled", help="store all images of --images without annotations, for train.teacher")
    add("--skeleton", metavar="FILE", default=BUILT_IN, help="skeleton of the annotations: a TOML file, or coco")
    add("--output", type=Path, metavar="FILE.h5", help="the store")
    add("--workers", type=positive_int, metavar="N", default=usable_cores(), help="threads; by default, one per core")
    add_switch(parser, "--verify", help="read the whole finished store and check it")
    add_switch(parser, "--stats", help="count people, keypoints and sizes")
    text = "draw some training samples into this folder, augmented as --config and --set define, with masks and maps"
    add("--preview", type=Path, metavar="DIR", help=text)
    add_image_ids(parser, "store only these images: ids, or one text file of ids")
    text = "store only the first N images that have a main person (default: all)"
    add("--limit", type=positive_int, metavar="N", help=text)
    text = "fail when more than this share of the images (rounded up) cannot be read"
    add("--max-unreadable", type=fraction, default=MAX_UNREADABLE, metavar="SHARE", help=text)
    text = "also store images without annotations, without --annotations all of --images: they show nobody"
    add_switch(parser, "--background", help=text)
    text = "store images with a longer side than N pixels smaller, with their annotations (default: all as they are)"
    add("--max-side", type=positive_int, default=0, metavar="N", help=text)
    add_overwrite_option(parser)
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Build a store, or inspect one, as the flags say."""
    config = load_config(args.config, args.overrides)
    has_no_labels = args.unlabelled or args.background
    is_built = args.images is not None and (args.annotations is not None or has_no_labels)
    is_inspected = args.verify or args.stats or args.preview is not None
    if args.unlabelled and (args.annotations is not None or args.background):
        raise DataError("--unlabelled goes with neither --annotations nor --background; leave out one of the two")
    if not is_built and (args.images or args.annotations or has_no_labels or not is_inspected):
        raise DataError(
            "give both --images and --annotations, or --images and --unlabelled or --background, or none of them and "
            "--verify, --stats or --preview"
        )
    if args.output is None and (is_built or not config.data.train):
        raise DataError("name the store with --output")
    if not is_built:
        require_store_files(config.data.train if args.output is None else str(args.output))
    if args.preview:
        images = list_image_files(args.annotations, args.images) if args.annotations else []
        if args.images and not args.annotations:
            images = find_images([args.images])
        check_outputs(preview_paths(args.preview), chain(input_files(args), images), overwrite=args.overwrite)
    if is_built:
        report = build_store(
            args.images,
            args.annotations,
            args.output,
            image_ids=read_image_ids(args.image_ids),
            limit=args.limit,
            workers=args.workers,
            max_unreadable=args.max_unreadable,
            overwrite=args.overwrite,
            skeleton=args.skeleton,
            exif_frame=config.data.exif_frame,
            max_side=args.max_side,
            background=args.background,
        )
        _print_report(report)
    if is_inspected:
        _inspect(args, config, is_built)


def _inspect(args: argparse.Namespace, config: Config, is_built: bool) -> None:
    """Inspect the store of --output as it is, or the data sets of ``data.train`` as training uses them."""
    setting = config.data.train if args.output is None else str(args.output)
    with open_data_sets(setting, config.model.skeleton if args.output is None else None) as stores:
        for data_set, (num_samples, per_epoch) in zip(stores.sets, stores.sample_counts(config.data.framing)):
            name = data_set.name if args.output is None else args.output
            if args.stats:
                print_message(f"\n== {name}: {pluralize(num_samples, 'sample')}, {per_epoch} of them per epoch")
            if not is_built and (args.verify or args.stats):
                _print_store(data_set.store)
            if args.verify:
                verify_store(data_set.store, workers=args.workers)
                print_message(f"{name} is intact")
            if args.stats:
                for line in compute_statistics(data_set.store):
                    print_message(line)
        if args.preview:
            # Only this needs PyTorch.
            from posenet.data.dataset import training_set
            from posenet.data.targets import TargetRenderer

            config = replace(config, model=replace(config.model, skeleton=stores.skeleton))
            paths = write_previews(training_set(stores, config), TargetRenderer.from_config(config), args.preview)
            print_message(f"drawn         {pluralize(len(paths), 'sample')}, {paths[0]} and so on")


def _print_store(store: Store) -> None:
    skeleton = store.skeleton
    print_message(f"images        {store.num_images}")
    if store.num_people:
        print_message(f"{skeleton.people:<12}  {store.num_people}")
    if store.num_people or not len(store):
        print_message(f"samples       {len(store)}, each of a main {skeleton.category}")
    else:
        print_message("samples       all images, which have no annotations, for train.teacher")
    if num_background := count_background(store):
        print_message(f"background    {pluralize(num_background, 'image')} without {skeleton.people}")
    ratio = store.num_file_bytes / store.num_image_bytes
    print_message(f"size          {store.num_file_bytes / 1e6:.1f} MB, {ratio:.3f} x the images")


def _print_report(report: BuildReport) -> None:
    _print_store(report.store)
    if report.store.num_people:
        empty = f", {report.num_empty} without any annotation (--background stores them)" if report.num_empty else ""
        left_out = pluralize(report.num_without_main_person, "image")
        print_message(f"left out      {left_out} without a main {report.store.skeleton.category}{empty}")
    if report.others:
        print_message(f"no sample     {report.others.total()}: {describe_others(report.others)}")
    for adjustment in report.adjustments.sorted():
        print_message(adjustment)
    if report.num_resized:
        text = "scaled with its annotations, because it has another size than annotated"
        print_message(f"changed       {pluralize(report.num_resized, 'image')} {text}")
    if report.num_shrunk:
        print_message(f"changed       {pluralize(report.num_shrunk, 'image')} made smaller, to --max-side")
    print_message(f"skipped       {pluralize(len(report.skipped), 'image')} of other proportions or unreadable")
    for line in report.skipped:
        print_message(f"  {to_single_line(line)}")
