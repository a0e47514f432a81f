"""Draw the curves of a training run from its log: losses, scores, learning rate and speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.logging_setup import print_message
from posenet.visualization.curves import CURVES_FILE, LOG_FILE, write_curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``plot``."""
    parser.add_argument("run", type=Path, metavar="RUN", help=f"folder of a run, or its {LOG_FILE}")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"file to write (.png, .svg or .pdf); by default, {CURVES_FILE} in the run's folder",
    )


def run(args: argparse.Namespace) -> None:
    """Draw the curves and print where they are."""
    folder = args.run.parent if args.run.name == LOG_FILE else args.run
    print_message(f"wrote {write_curves(folder, args.output)}")
