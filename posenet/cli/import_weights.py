"""Convert a published weights file to a checkpoint of this program, which contains its configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.checkpoints.conversion import import_weights
from posenet.cli.options import add_config_options, add_weights_output, check_output_file
from posenet.cli.predictor_options import requested_config
from posenet.messages import pluralize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``import-weights``."""
    parser.add_argument(
        "weights",
        metavar="FILE",
        help="a published file, such as PoseNet_52_epoch.pth, or a name that posenet weights list shows",
    )
    add_weights_output(parser)
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Convert the file and print what it contains."""
    check_output_file(args.output, Path(args.weights), args.overwrite)
    model = import_weights(args.weights, args.output, requested_config(args, args.weights)).model
    stacks = pluralize(model.stacks, "stack")
    print(f"wrote {args.output}: a network of {stacks}, width {model.width}, growth {model.growth}")
