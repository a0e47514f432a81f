"""Train a PoseNet on several devices of one machine, in one process (DataParallel)."""

import argparse

from posenet.cli import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train-parallel``."""
    train.add_arguments(parser)
    parser.add_argument(
        "--devices", type=device_numbers, metavar="I,J", help="numbers of the devices, for example 0,1; by default, all"
    )


def run(args: argparse.Namespace) -> int:
    """Train with DataParallel; return the exit status."""
    from posenet.devices.parallel import DataParallelRuntime

    return train.run(args, DataParallelRuntime(args.devices))


def device_numbers(text: str) -> list[int]:
    """Argument type: whole numbers separated by commas."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of device numbers such as 0,1") from None
