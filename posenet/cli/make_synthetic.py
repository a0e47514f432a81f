"""Generate a synthetic data set of people in COCO's layout, for tests and first experiments.

Writes ``annotations/``, ``train2017/`` and ``val2017/``; with --video also ``videos/``, where people walk, cross, leave
and come back. The same options write the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.logging_setup import print_message
from posenet.cli.options import add_overwrite_option
from posenet.messages import pluralize
from posenet.synthetic.dataset import DEFAULT_SEED, DEFAULT_SIZE, Size, write_dataset
from posenet.synthetic.video import DEFAULT_SECONDS

DEFAULT_TRAIN = 1000
DEFAULT_VAL = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``make-synthetic``."""
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write; one with files of other programs is refused",
    )
    add_overwrite_option(parser)
    parser.add_argument(
        "--train", type=int, metavar="N", help=f"training images (default: {DEFAULT_TRAIN}; with --video 0)"
    )
    parser.add_argument(
        "--val", type=int, metavar="N", help=f"validation images (default: {DEFAULT_VAL}; with --video 0)"
    )
    parser.add_argument(
        "--video",
        type=int,
        default=0,
        metavar="N",
        help="videos of people who walk, each with a JSON file of where they are in every frame",
    )
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, metavar="S", help="length of every video")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, metavar="S", help="seed of the images and videos")
    parser.add_argument(
        "--size",
        type=_size,
        default=DEFAULT_SIZE,
        metavar="WxH|LONGEST",
        help="size of every image and video, such as 480x360; or the longest side of images with different sizes",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes; by default, one per core")


def run(args: argparse.Namespace) -> None:
    """Write the data set and print where it is."""
    train = args.train if args.train is not None else 0 if args.video else DEFAULT_TRAIN
    val = args.val if args.val is not None else 0 if args.video else DEFAULT_VAL
    write_dataset(
        args.output,
        train,
        val,
        args.seed,
        args.workers,
        args.size,
        args.video,
        args.seconds,
        overwrite=args.overwrite,
    )
    videos = f", {pluralize(args.video, 'video')}" if args.video else ""
    print_message(f"{train} training and {val} validation images{videos} in {args.output}")


def _size(text: str) -> Size:
    match text.split("x"):
        case [longest] if longest.isdecimal():
            return int(longest)
        case [width, height] if width.isdecimal() and height.isdecimal():
            return int(width), int(height)
    raise argparse.ArgumentTypeError(f"{text!r} is neither WIDTHxHEIGHT nor one number")
