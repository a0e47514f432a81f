"""Train a PoseNet on one device; Ctrl-C finishes the step and saves, --resume continues."""

from __future__ import annotations

import argparse

from posenet.cli.training import train
from posenet.cli.training_options import add_training_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train``."""
    add_training_options(parser)


def run(args: argparse.Namespace) -> None:
    """Train on one device."""
    train(args)
