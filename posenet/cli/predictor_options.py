"""Options shared by the tools that run a trained network, and the predictor that they define."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from posenet.cli.options import CHECKPOINT_HELP, add_config_options, setting_help
from posenet.errors import ConfigError
from posenet.inference.backends.loading import BACKENDS, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.settings import Config, load_config

if TYPE_CHECKING:
    from posenet.model.posenet import PoseNet

CHECKPOINT_OR_EXPORTED_HELP = f"{CHECKPOINT_HELP}; or a file that posenet export-onnx has written (.onnx)"
"""Help of ``--checkpoint`` where an exported file will do."""
BACKEND_HELP = (
    "software that runs the network: auto is the fastest that is installed and as accurate "
    "(default: torch for a checkpoint, auto for an exported file)"
)

_INFERENCE_OPTIONS = ("height", "scales", "flip", "batch_size")
"""Options that override keys of the configuration's ``inference`` section."""


def add_predictor_options(
    parser: argparse.ArgumentParser,
    amp: str = "auto",
    *,
    required: bool = True,
    checkpoint_help: str = CHECKPOINT_OR_EXPORTED_HELP,
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
    add(
        "--backend",
        choices=BACKENDS,
        help=BACKEND_HELP,
    )
    add("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    add(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        default=amp,
        help="precision of the network: off is float32, auto is the fastest one without loss of accuracy on the device",
    )
    add_config_options(parser)


def make_predictor(args: argparse.Namespace, *, parallel: bool) -> tuple[Predictor, Config]:
    """The predictor that the options define, and the configuration of its network.

    ``parallel`` is that of ``Predictor.from_checkpoint``: whether the predictor is for streams of many batches.
    """
    config = requested_config(args, args.checkpoint)
    overrides = {name: getattr(args, name) for name in _INFERENCE_OPTIONS if name in args}
    return Predictor.load(
        args.checkpoint,
        config=config,
        device=args.device,
        amp=args.amp,
        backend=args.backend,
        threads=getattr(args, "threads", None),
        parallel=parallel,
        **overrides,
    )


def load_network(args: argparse.Namespace) -> tuple[PoseNet, Config]:
    """The network in the file ``--checkpoint``, and its configuration.

    ``--config`` replaces the configuration in the checkpoint; ``--set`` overrides single keys.
    """
    from posenet.checkpoints.weights import load_model

    return load_model(args.checkpoint, requested_config(args, args.checkpoint))


def requested_config(args: argparse.Namespace, path: str | Path) -> Config | None:
    """The configuration of ``--config`` and ``--set``; None for the unchanged one of the checkpoint at ``path``."""
    if (args.config or args.overrides) and is_exported_file(path):
        raise ConfigError(f"{path} is an exported file with settings of its own; leave out --config and --set")
    if args.config:
        return load_config(args.config, args.overrides)
    if args.overrides:
        from posenet.checkpoints.weights import stored_config

        return load_config(None, args.overrides, base=stored_config(path))
    return None
