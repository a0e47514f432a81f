"""Options shared by the tools that run a trained network, and the predictor that they define."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from posenet.checkpoints.weights import load_model, stored_config
from posenet.cli.options import CHECKPOINT_HELP, add_config_options, setting_help
from posenet.devices.device import select_device
from posenet.devices.precision import select_amp
from posenet.errors import DataError
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import Config, load_config

_INFERENCE_OPTIONS = ("height", "scales", "flip", "batch_size")
"""Options that override keys of the configuration's ``inference`` section."""


def add_predictor_options(
    parser: argparse.ArgumentParser,
    amp: str = "auto",
    *,
    required: bool = True,
    checkpoint_help: str = CHECKPOINT_HELP,
) -> None:
    """Add the options that choose a network and how to run it; ``amp`` is the default precision."""
    add = parser.add_argument
    add("--checkpoint", "--weights", required=required, metavar="FILE", help=checkpoint_help)
    unset = argparse.SUPPRESS
    add(
        "--height",
        type=int,
        metavar="N",
        default=unset,
        help=setting_help("resize images to this height", "inference.height", of_checkpoint=True),
    )
    add(
        "--scales",
        type=float,
        nargs="+",
        metavar="S",
        default=unset,
        help=setting_help("average over these multiples of the height", "inference.scales", of_checkpoint=True),
    )
    add(
        "--flip",
        action=argparse.BooleanOptionalAction,
        default=unset,
        help=setting_help("average with the mirrored image", "inference.flip", of_checkpoint=True),
    )
    add(
        "--batch-size",
        type=int,
        metavar="N",
        default=unset,
        help=setting_help("images per batch", "inference.batch_size", of_checkpoint=True),
    )
    add("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    add(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        default=amp,
        help="precision of the network: off is float32, auto is the fastest one without loss of accuracy on the device",
    )
    add_config_options(parser)


def make_predictor(args: argparse.Namespace) -> Predictor:
    """The predictor that the options define. It runs a fused copy of the network."""
    device = select_device(args.device)
    network, config = load_network(args)
    overrides = {name: getattr(args, name) for name in _INFERENCE_OPTIONS if name in args}
    fused = FusedNetwork(network, select_amp(device, args.amp))
    return Predictor.from_config(fused, config, device=device, **overrides)


def load_network(args: argparse.Namespace) -> tuple[PoseNet, Config]:
    """The network in the file ``--checkpoint``, and its configuration.

    ``--config`` replaces the configuration in the checkpoint; ``--set`` overrides single keys.
    """
    return load_model(args.checkpoint, requested_config(args, args.checkpoint))


def requested_config(args: argparse.Namespace, path: str | Path) -> Config | None:
    """The configuration of ``--config`` and ``--set``; None for the unchanged one of the checkpoint at ``path``."""
    if args.config:
        return load_config(args.config, args.overrides)
    if args.overrides:
        return load_config(None, args.overrides, base=stored_config(path))
    return None


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Check the paths of all files that will be written, and make their folders, before any work is done.

    ``DataError`` if an output is an input, appears twice, or is an existing folder; or if its folder is a file.
    """
    protected = {path.resolve() for path in inputs}
    checked: set[Path] = set()
    for path in outputs:
        if path.resolve() in protected:
            raise DataError(f"writing {path} would replace an input; choose another name or folder")
        if path.resolve() in checked:
            raise DataError(f"{path} would be written twice; choose another name or folder for one of the outputs")
        checked.add(path.resolve())
        if path.is_dir():
            raise DataError(f"{path} is a folder; give the name of a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{path.parent} cannot be a folder: a file has that name; choose another") from error
