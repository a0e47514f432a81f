"""Options shared by the tools that run a trained network, and the predictor that they define."""

from __future__ import annotations

import argparse

from posenet.cli.options import CHECKPOINT_HELP, ArgumentContainer, add_config_options, add_switch, setting_help
from posenet.errors import ConfigError
from posenet.inference.networks import BACKENDS, BackendName, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.settings import Config, load_config

_SETTINGS = ("height", "scales", "flip")
"""Options that override keys of the configuration's ``inference`` section."""


def add_checkpoint_option(container: ArgumentContainer, default: str | None = None) -> None:
    """Add ``--checkpoint``, which must be given if there is no default."""
    text = f"{CHECKPOINT_HELP}; or a file that posenet export-onnx has written (.onnx)"
    container.add_argument(
        "--checkpoint",
        "--weights",
        required=default is None,
        default=default,
        metavar="FILE",
        help=text if default is None else f"{text} (default: {default}, the published weights)",
    )


def add_network_options(parser: argparse.ArgumentParser, amp: str, backend: BackendName | None = None) -> None:
    """Add the options that say how to run a network; ``amp`` and ``backend`` are the defaults."""
    group = parser.add_argument_group("network")
    unset = argparse.SUPPRESS
    group.add_argument(
        "--height",
        type=int,
        metavar="N",
        default=unset,
        help=setting_help("resize images to this height", "inference.height", of_checkpoint=True),
    )
    group.add_argument(
        "--scales",
        type=float,
        nargs="+",
        metavar="S",
        default=unset,
        help=setting_help("average over these multiples of the height", "inference.scales", of_checkpoint=True),
    )
    add_switch(
        group,
        "--flip",
        default=unset,
        help=setting_help("average with the mirrored image", "inference.flip", of_checkpoint=True),
    )
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        default=backend,
        help="software that runs the network: auto is the fastest one that is installed and as accurate (default: "
        + (backend or "torch for a checkpoint, auto for an exported file")
        + ")",
    )
    group.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    group.add_argument(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        default=amp,
        help="precision of the network: off is float32, auto is the fastest one without loss of accuracy on the device",
    )
    add_config_options(parser)


def make_predictor(args: argparse.Namespace, min_score: float = 0.0) -> Predictor:
    """The predictor that the options define."""
    overrides = {name: getattr(args, name) for name in _SETTINGS if name in args}
    exif_frame = None
    tracking = None
    if is_exported_file(args.checkpoint):
        keys = [pair.partition("=")[0].strip() for pair in args.overrides]
        if args.config or any(key.startswith("model.") for key in keys):
            raise ConfigError(
                f"{args.checkpoint} is an exported file with a network and settings of its own; leave out "
                "--config, and model.* in --set"
            )
        config = load_config(None, args.overrides)
        names = [key.removeprefix("inference.") for key in keys if key.startswith("inference.")]
        overrides = {name: getattr(config.inference, name) for name in names} | overrides
        exif_frame = config.data.exif_frame if "data.exif_frame" in keys else None
        tracking = config.tracking if any(key.startswith("tracking.") for key in keys) else None
    predictor = Predictor.from_checkpoint(
        args.checkpoint,
        config=requested_config(args),
        device=args.device,
        amp=args.amp,
        backend=args.backend,
        min_score=min_score,
        **overrides,
    )
    predictor.exif_frame = exif_frame or predictor.exif_frame
    predictor.tracking = tracking or predictor.tracking
    return predictor


def requested_config(args: argparse.Namespace) -> Config | None:
    """The configuration of ``--config`` and ``--set``; None for that of the checkpoint or the exported file."""
    if is_exported_file(args.checkpoint) or not (args.config or args.overrides):
        return None
    if args.config:
        return load_config(args.config, args.overrides)
    from posenet.checkpoints.weights import stored_config

    return load_config(None, args.overrides, base=stored_config(args.checkpoint))
