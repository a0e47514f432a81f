"""Convert a checkpoint to a file in the published format, which the paper's authors' code reads."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.checkpoints.conversion import export_weights
from posenet.cli.options import CHECKPOINT_HELP, add_weights_output, check_output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``export-weights``."""
    parser.add_argument("weights", metavar="FILE", help=CHECKPOINT_HELP)
    add_weights_output(parser)


def run(args: argparse.Namespace) -> None:
    """Convert the file and print where the result is."""
    check_output_file(args.output, Path(args.weights), args.overwrite)
    export_weights(args.weights, args.output)
    print(f"wrote {args.output}")
