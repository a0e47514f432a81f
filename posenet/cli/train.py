"""Train a PoseNet on one device; Ctrl-C finishes the step and saves, --resume continues."""

from __future__ import annotations

import argparse
import os

from posenet.cli.training import refuse_launcher, train
from posenet.cli.training_options import add_training_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train``."""
    add_training_options(parser)


def run(args: argparse.Namespace) -> int:
    """Train on one device; return the exit status."""
    refuse_launcher(os.environ)
    return train(args)
