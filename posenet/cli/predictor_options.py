"""Options shared by the tools that run a trained network, and the predictor that they define."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from posenet.cli.options import CHECKPOINT_HELP, ArgumentContainer, add_config_options, add_switch, scale, setting_help
from posenet.errors import ConfigError
from posenet.inference.networks import BACKENDS, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.settings import Config, load_config

_SETTINGS = ("height", "scales", "flip")
"""Options that override keys of the configuration's ``inference`` section."""


def add_checkpoint_option(container: ArgumentContainer, default: str | None = None) -> None:
    """Add ``--checkpoint``, which must be given if there is no default."""
    text = f"{CHECKPOINT_HELP}; or a file that posenet export-onnx has written (.onnx)"
    if default is not None:
        text += f" (default: {default}, the published weights)"
    names = ("--checkpoint", "--weights")
    container.add_argument(*names, required=default is None, default=default, metavar="FILE", help=text)


def add_network_options(parser: argparse.ArgumentParser, amp: str, backend: str = "auto") -> None:
    """Add the options that say how to run a network; ``amp`` is a default, and ``backend`` describes one."""
    group = parser.add_argument_group("network")
    unset = argparse.SUPPRESS
    height = setting_help("resize images to this height", "inference.height", of_checkpoint=True)
    group.add_argument("--height", type=int, metavar="N", default=unset, help=height)
    scales = setting_help("average over these multiples of the height", "inference.scales", of_checkpoint=True)
    group.add_argument("--scales", type=scale, nargs="+", metavar="S", default=unset, help=scales)
    flip = setting_help("average with the mirrored image", "inference.flip", of_checkpoint=True)
    add_switch(group, "--flip", default=unset, help=flip)
    text = "software that runs the network: auto is the fastest one that is installed and as accurate"
    group.add_argument("--backend", choices=BACKENDS, help=f"{text} (default: {backend})")
    group.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    text = "precision of the network: off is float32, auto is the fastest one without loss of accuracy on the device"
    group.add_argument("--amp", choices=["auto", "off", "bf16", "fp16"], default=amp, help=text)
    add_config_options(parser)


def make_predictor(args: argparse.Namespace, min_score: float = 0.0, num_images: int | None = None) -> Predictor:
    """The predictor that the options define; ``num_images`` is that of ``Predictor``."""
    flags = {name: getattr(args, name) for name in _SETTINGS if name in args}
    is_exported = is_exported_file(args.checkpoint)
    if is_exported:
        if args.config or _overridden(args, "model"):
            raise ConfigError(
                f"{args.checkpoint} is an exported file with a network and settings of its own; leave out "
                "--config, and model.* in --set"
            )
        flags = _overridden(args, "inference") | flags
    predictor = Predictor(
        args.checkpoint,
        config=requested_config(args, args.checkpoint),
        device=args.device,
        amp=args.amp,
        backend=args.backend or "auto",
        num_images=num_images,
        min_score=min_score,
        **flags,
    )
    if is_exported:
        predictor.tracking = dataclasses.replace(predictor.tracking, **_overridden(args, "tracking"))
    return predictor


def _overridden(args: argparse.Namespace, section: str) -> dict[str, Any]:
    """The keys of a section that ``--set`` names, and their values."""
    keys = [pair.partition("=")[0].strip().partition(".") for pair in args.overrides]
    values = getattr(load_config(None, args.overrides), section)
    return {name: getattr(values, name) for of_section, _, name in keys if of_section == section}


def requested_config(args: argparse.Namespace, weights: str) -> Config | None:
    """The configuration of ``--config`` and ``--set``; None for that of the checkpoint or the exported file."""
    if is_exported_file(weights) or not (args.config or args.overrides):
        return None
    if args.config:
        return load_config(args.config, args.overrides)
    from posenet.checkpoints.weights import stored_config

    return load_config(None, args.overrides, base=stored_config(weights))
