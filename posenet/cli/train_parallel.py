"""Train a PoseNet on several devices of one machine, in one process (DataParallel)."""

from __future__ import annotations

import argparse

from posenet.cli import train
from posenet.cli.processes import refuse_launcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train-parallel``."""
    train.add_arguments(parser)
    parser.add_argument(
        "--devices", type=_indices, metavar="I,J", help="numbers of the devices, for example 0,1; by default, all"
    )


def run(args: argparse.Namespace) -> int:
    """Train with DataParallel; return the exit status."""
    refuse_launcher(train.ONE_RUN)
    from posenet.devices.parallel import DataParallelRuntime

    return train.train_with_flags(args, DataParallelRuntime(args.devices))


def _indices(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of device numbers such as 0,1") from None
