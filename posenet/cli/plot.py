"""Draw the curves of a training run from its log: losses, scores, learning rate and speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.visualization.training_curves import LOG, PICTURE, draw_curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=f"folder of a run, or its {LOG}")
    parser.add_argument(
        "--output", metavar="FILE", help=f"where to draw (.png, .svg or .pdf); else {PICTURE} in the run's folder"
    )


def run(args: argparse.Namespace) -> None:
    """Draw, and say where."""
    folder = Path(args.run)
    if folder.name == LOG:
        folder = folder.parent
    print(f"wrote {draw_curves(folder, Path(args.output) if args.output else None)}")
