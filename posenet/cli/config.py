"""List the experiments that posenet brings along, or print one with its comments."""

from __future__ import annotations

import argparse

from posenet.cli.logging_setup import print_message
from posenet.files import write_atomically
from posenet.settings.experiments import experiment_names, experiment_summary, experiment_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the name of the experiment."""
    parser.add_argument(
        "name", nargs="?", help="experiment to print, as a file to change: posenet config tiny > mine.toml"
    )


def run(args: argparse.Namespace) -> None:
    """Print the experiment, or all names with a line each."""
    if args.name is not None:
        write_atomically("-", experiment_text(args.name).encode())
        return
    names = experiment_names()
    width = max(map(len, names))
    for name in names:
        print_message(f"{name:<{width}}  {experiment_summary(name)}")
