"""Generate a synthetic data set of people in COCO's layout, for tests and first experiments.

Writes ``annotations/``, ``train2017/`` and ``val2017/``. The same options write the same bytes.
"""

import argparse
from pathlib import Path

from posenet.cli.main import print_message
from posenet.synthetic.dataset import DEFAULT_SIZE, write_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``make-synthetic``."""
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="DIR", help="folder to write, a new or an empty one")
    add("--train", type=int, default=1000, metavar="N", help="training images")
    add("--val", type=int, default=100, metavar="N", help="validation images")
    add("--seed", type=int, default=0, metavar="S", help="seed of the images")
    add("--size", type=int, default=DEFAULT_SIZE, metavar="LONGEST", help="longest side of the images, pixels")
    add("--workers", type=int, metavar="N", help="processes; by default, one per core")


def run(args: argparse.Namespace) -> None:
    """Write the data set and print where it is."""
    write_dataset(args.output, args.train, args.val, args.seed, args.workers, args.size)
    print_message(f"{args.train} training and {args.val} validation images in {args.output}")
