"""What the tools that run a trained network share: their flags and the predictor these give."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, load_model
from posenet.cli.options import add_config_options
from posenet.devices.device import select_device
from posenet.devices.precision import select_amp
from posenet.errors import DataError
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import Config, load_config

_SETTINGS = ("height", "scales", "flip", "batch_size")
"""Flags that stand for keys of the configuration's ``inference`` section."""


def add_predictor_options(parser: argparse.ArgumentParser, amp: str = "auto") -> None:
    """The flags that choose a network and how it is run; ``amp`` is the default precision."""
    add = parser.add_argument
    add("--checkpoint", "--weights", required=True, metavar="FILE", help="checkpoint of a run, or a published one")
    add(
        "--height",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="resize images to this height (inference.height)",
    )
    add(
        "--scales",
        type=float,
        nargs="+",
        metavar="S",
        default=argparse.SUPPRESS,
        help="average over these multiples of the height (inference.scales)",
    )
    add(
        "--flip",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="average with the mirrored image (inference.flip)",
    )
    add(
        "--batch-size",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="images that go through the network together (inference.batch_size)",
    )
    add("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    add(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        default=amp,
        help="precision of the network: off is float32, auto the fastest that is as accurate on the device",
    )
    add_config_options(parser)


def make_predictor(args: argparse.Namespace) -> Predictor:
    """The predictor that the flags name, of the network's deployed copy.

    Raises:
        PosenetError: a checkpoint, configuration, flag or device that cannot be used.
    """
    device = select_device(args.device)
    model, config = load_network(args)
    settings = {name: getattr(args, name) for name in _SETTINGS if name in args}
    return Predictor.from_config(FusedNetwork(model, select_amp(device, args.amp)), config, device=device, **settings)


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Make the folders of files to be written, before any work is done for them.

    Raises:
        DataError: a file that would replace an input or another output, or whose name is a folder's, or whose folder is
            a file.
    """
    originals, written = {path.resolve() for path in inputs}, set()
    for path in outputs:
        if path.resolve() in originals:
            raise DataError(f"writing {path} would replace an input; choose another name or folder")
        if path.resolve() in written:
            raise DataError(f"{path} would be written twice; choose another name or folder for one of the outputs")
        written.add(path.resolve())
        if path.is_dir():
            raise DataError(f"{path} is a folder; give the name of a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{path.parent} cannot be a folder: a file has that name; choose another") from error


def load_network(args: argparse.Namespace) -> tuple[PoseNet, Config]:
    """The network that ``--checkpoint`` names, and its configuration.

    ``--config`` stands in for the configuration that the checkpoint carries; ``--set`` overrules either.

    Raises:
        PosenetError: a checkpoint or configuration that cannot be used.
    """
    return load_model(args.checkpoint, asked_config(args, args.checkpoint))


def asked_config(args: argparse.Namespace, path: Path) -> Config | None:
    """The configuration that the flags ask for; None where it is the own one of the checkpoint at ``path``."""
    if args.config:
        return load_config(args.config, args.overrides)
    if args.overrides:
        return load_config(None, args.overrides, base=config_of_checkpoint(read_checkpoint(path), path))
    return None
