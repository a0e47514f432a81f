"""Build a training store (.h5) from a folder of images and a COCO keypoint file, or inspect one.

Images without a main person are left out, except with --background those without any annotation. The tool prints
counts and names every image that could not be read. With --unlabelled it stores all images of the folder without
annotations, for training with a teacher (docs/training.md). Without --images and --annotations, the flags --verify,
--stats and --preview inspect the store that is there.
"""

import argparse
from dataclasses import replace
from itertools import chain
from pathlib import Path

import cv2

from posenet.annotations.coco import list_image_files
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
from posenet.data.build import MAX_UNREADABLE, build_store
from posenet.data.store import Store, compute_statistics, verify_store
from posenet.data.store_list import count_background
from posenet.errors import DataError
from posenet.files import check_outputs
from posenet.images import find_images, write_image
from posenet.messages import pluralize, to_single_line
from posenet.settings import Config, load_config
from posenet.skeleton.skeleton_file import BUILT_IN
from posenet.threads import usable_cores
from posenet.visualization.sheets import sheet_of_samples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``build-hdf5``."""
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of the images")
    add("--annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    add_switch(parser, "--unlabelled", help="store all images of --images without annotations, for train.teacher")
    add("--skeleton", metavar="FILE", default=BUILT_IN, help="skeleton of the annotations: a TOML file, or coco")
    add("--output", type=Path, required=True, metavar="FILE.h5", help="the store")
    add("--workers", type=positive_int, metavar="N", default=usable_cores(), help="threads; by default, one per core")
    add_switch(parser, "--verify", help="read the whole finished store and check it")
    add_switch(parser, "--stats", help="count people, keypoints and sizes")
    text = "draw some training samples, augmented as --config and --set define (others with another train.seed), with "
    text += "their masks and target maps"
    add("--preview", type=Path, metavar="FILE.jpg", help=text)
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
    is_built = args.images is not None
    has_source = args.annotations is not None or args.unlabelled or args.background
    is_inspected = args.verify or args.stats or args.preview is not None
    if is_built != has_source or not (is_built or is_inspected):
        raise DataError(
            "give --images and one of --annotations, --unlabelled and --background to build a store; to inspect one, "
            "none of them, but --verify, --stats or --preview"
        )
    if args.unlabelled and (args.annotations is not None or args.background):
        raise DataError("--unlabelled goes with neither --annotations nor --background; leave out one of the two")
    if args.preview is not None:
        if not cv2.haveImageWriter(str(args.preview)):
            raise DataError(f"--preview {args.preview} is not the name of an image file; give FILE.jpg")
        images = list_image_files(args.annotations, args.images) if args.annotations else []
        if is_built and not images:
            images = find_images([args.images])
        check_outputs([args.preview], chain(input_files(args), images), overwrite=args.overwrite)
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
        _print_store(report.store)
        changes = (f"{pluralize(count, 'image')} {change}" for change, count in report.changed.items())
        for line in (*report.missing_lines(), *report.adjustments.sorted(), *changes):
            print_message(to_single_line(str(line)))
    if is_inspected:
        _inspect(args, config, is_built)


def _inspect(args: argparse.Namespace, config: Config, is_built: bool) -> None:
    with Store(args.output) as store:
        if not is_built:
            _print_store(store)
        if args.verify:
            verify_store(store, workers=args.workers)
            print_message(f"{args.output} is intact")
        for line in compute_statistics(store) if args.stats else ():
            print_message(line)
        if args.preview is not None:
            # Only this needs PyTorch.
            from posenet.data.dataset import training_set
            from posenet.data.targets import TargetRenderer

            config = replace(config, model=replace(config.model, skeleton=store.skeleton))
            write_image(args.preview, sheet_of_samples(training_set(store, config), TargetRenderer.from_config(config)))


def _print_store(store: Store) -> None:
    counts = {"images": store.num_images, store.skeleton.people: store.num_people, "samples": len(store)}
    for name, count in counts.items():
        print_message(f"{name:<12}  {count}")
    if num_background := count_background(store):
        print_message(f"background    {pluralize(num_background, 'image')} without {store.skeleton.people}")
    ratio = store.num_file_bytes / store.num_image_bytes
    print_message(f"size          {store.num_file_bytes / 1e6:.1f} MB, {ratio:.3f} x the images")
