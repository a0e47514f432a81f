"""Train a PoseNet on several devices of one machine, in one process (DataParallel)."""

from __future__ import annotations

import argparse
import os

import torch

from posenet.cli.training import refuse_launcher, train
from posenet.cli.training_options import add_training_options
from posenet.devices.data_parallel import DataParallelRuntime, select_devices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train-parallel``."""
    add_training_options(parser)
    parser.add_argument(
        "--devices", type=_indices, metavar="I,J", help="numbers of the devices, for example 0,1; by default, all"
    )


def run(args: argparse.Namespace) -> int:
    """Train with DataParallel; return the exit status."""
    refuse_launcher(os.environ)

    def make_runtime(device: torch.device) -> DataParallelRuntime:
        return DataParallelRuntime(select_devices(device, args.devices))

    return train(args, make_runtime)


def _indices(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of device numbers such as 0,1") from None
