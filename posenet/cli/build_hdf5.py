"""Build a training store (.h5) from a folder of images and a COCO keypoint file, or verify one.

Images without a main person are left out. Prints what was stored; names every image that could not be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.options import positive, read_image_ids
from posenet.data.build import BuildReport, Summary, build_store, verify
from posenet.errors import DataError
from posenet.skeleton_file import BUILT_IN, load_skeleton
from posenet.system import usable_cores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``build-hdf5``."""
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the images")
    parser.add_argument("--annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    parser.add_argument("--skeleton", metavar="FILE", default=BUILT_IN,
                        help="what the annotations name: a TOML file (docs/custom_data.md), or coco, the built-in one")
    parser.add_argument("--output", type=Path, metavar="FILE.h5", required=True, help="the store")
    parser.add_argument("--workers", type=positive, metavar="N", default=usable_cores(),
                        help="threads; the default is one per core")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=False,
                        help="read the finished store from end to end; without --images and --annotations, only that")
    parser.add_argument("--image-ids", nargs="+", metavar="ID",
                        help="store only these images: ids, or one text file of ids")
    parser.add_argument("--limit", type=positive, metavar="N",
                        help="store only the first N images that have a main person")
    parser.add_argument("--max-unreadable", type=_share, default=0.05, metavar="SHARE",
                        help="fail when more than this share of the images (rounded up) cannot be read")
    parser.add_argument("--overwrite", action=argparse.BooleanOptionalAction, default=False,
                        help="replace an existing store, once the new one is complete")


def run(args: argparse.Namespace) -> None:
    """Build, verify, or both."""
    if args.images is None and args.annotations is None and args.verify:
        _print_summary(verify(args.output, workers=args.workers, progress=True))
        print(f"{args.output} is sound")
        return
    if args.images is None or args.annotations is None:
        raise DataError("give both --images and --annotations, or neither and --verify")
    ids = None if args.image_ids is None else read_image_ids(args.image_ids)
    report = build_store(args.images, args.annotations, args.output, image_ids=ids, limit=args.limit,
                         workers=args.workers, max_unreadable=args.max_unreadable, overwrite=args.overwrite,
                         skeleton=load_skeleton(args.skeleton), progress=True)
    _print_report(report)
    if args.verify:
        verify(args.output, workers=args.workers, progress=True)
        print(f"{args.output} is sound")


def _print_summary(summary: Summary) -> None:
    megabytes, ratio = summary.file_bytes / 1e6, summary.file_bytes / summary.picture_bytes
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


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return value
