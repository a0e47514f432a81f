"""Draw the curves of a training run from its log: losses, scores, learning rate and speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.logging_setup import print_message
from posenet.cli.options import add_overwrite_option, input_files
from posenet.files import check_outputs
from posenet.visualization.curves import CURVES_FILE, LOG_FILE, OWN_CURVES, write_curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``plot``."""
    parser.add_argument("run", type=Path, metavar="RUN", help=f"folder of a run, or its {LOG_FILE}")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"file to write (.png, .svg or .pdf); by default, {CURVES_FILE} in the run's folder, where earlier "
        "curves are replaced",
    )
    add_overwrite_option(parser)


def run(args: argparse.Namespace) -> None:
    """Draw the curves and print where they are."""
    folder = args.run.parent if args.run.name == LOG_FILE else args.run
    inputs = [folder / LOG_FILE, *input_files(args)]
    if args.output is None:
        check_outputs([], inputs, side_files={folder / CURVES_FILE: OWN_CURVES})
    else:
        check_outputs([args.output], inputs, overwrite=args.overwrite)
    print_message(f"wrote {write_curves(folder, args.output)}")
