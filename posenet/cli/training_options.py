"""The flags of the training tools, and the settings that they override."""

from __future__ import annotations

import argparse
import json

from posenet.cli.options import CHECKPOINT_HELP, add_config_options, non_negative_int, setting_help
from posenet.errors import ConfigError

FLAG_KEYS = {
    "checkpoint_path": "checkpoint.path",
    "weights": "train.weights",
    "teacher": "train.teacher",
    "freeze": "train.freeze",
    "amp": "train.amp",
    "loss_scale": "train.loss_scale",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "optim.lr",
    "max_grad_norm": "optim.max_grad_norm",
    "print_freq": "log.every_steps",
    "device": "train.device",
    "patience": "train.patience",
    "scale_lr": "optim.scale_lr",
    "channels_last": "train.channels_last",
    "sync_bn": "parallel.sync_bn",
    "compile": "parallel.compile",
}
"""The flags, and the setting that each of them overrides."""

OPT_LEVELS = {"O0": "off", "O1": "fp16", "O2": "fp16", "O3": "fp16"}
"""Apex's optimization levels and the precision that replaces them."""


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every training tool. The help of a flag names the setting that it overrides."""
    add_config_options(parser)
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add(
        "-r",
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue from this checkpoint or run folder; without PATH, from the newest intact checkpoint of the "
        "run's folder, or start a new run if it contains none (default: start a new run)",
    )
    add(
        "--no-resume",
        dest="resume",
        action="store_const",
        const=None,
        help="start a new run, in a folder that contains no run (the default)",
    )
    add(
        "-p",
        "--checkpoint-path",
        metavar="DIR",
        help="folder of the run (checkpoint.path; default: checkpoints/NAME of the experiment file)",
    )
    add(
        "--weights",
        metavar="FILE",
        help=setting_help(f"fine-tune from weights: {CHECKPOINT_HELP}", "train.weights"),
    )
    add(
        "--teacher",
        metavar="FILE",
        help=setting_help(f"learn the maps of a stronger network: {CHECKPOINT_HELP}", "train.teacher"),
    )
    add(
        "--freeze",
        nargs="+",
        metavar="PATTERN",
        help=setting_help(
            "freeze the parameters with names that match a glob pattern, or all-but-heads", "train.freeze"
        ),
    )
    add("--no-freeze", dest="freeze", action="store_const", const=[], help="freeze nothing")
    add(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        help=setting_help("precision of the network; off is float32, auto depends on the device", "train.amp"),
    )
    add("--opt-level", choices=OPT_LEVELS, help="Apex's name for --amp: O0 is off, the others are fp16")
    add(
        "--loss-scale",
        metavar="X",
        help=setting_help("fixed loss scale for fp16; 0 and dynamic adapt it", "train.loss_scale"),
    )
    add("--epochs", type=int, metavar="N", help=setting_help("passes over the training set", "train.epochs"))
    add("--batch-size", type=int, metavar="N", help=setting_help("samples per process and batch", "train.batch_size"))
    add("--lr", type=float, metavar="X", help=setting_help("learning rate", "optim.lr"))
    add(
        "--warmup",
        action=switch,
        help=setting_help(
            "raise the learning rate over the first epochs; over the default number if the configuration has 0",
            "optim.warmup_epochs",
        ),
    )
    add(
        "--max-grad-norm",
        type=float,
        metavar="X",
        help=setting_help("clip the norm of the gradient to this; 0 does not clip", "optim.max_grad_norm"),
    )
    add("--print-freq", type=int, metavar="N", help=setting_help("steps between log lines", "log.every_steps"))
    add(
        "--scale-lr",
        action=switch,
        help=setting_help("multiply the learning rate by the number of processes", "optim.scale_lr"),
    )
    add("--sync-bn", action=switch, help=setting_help("BatchNorm statistics over all processes", "parallel.sync_bn"))
    add(
        "--channels-last",
        action=switch,
        help=setting_help("channels-last weights, faster in half precision; auto uses it there", "train.channels_last"),
    )
    add(
        "--compile",
        action=switch,
        help=setting_help("compile targets, network and loss with torch.compile", "parallel.compile"),
    )
    add(
        "--patience",
        type=non_negative_int,
        metavar="N",
        help=setting_help("stop after N epochs without a better score; 0 does not stop", "train.patience"),
    )
    add("--device", metavar="D", help=setting_help("auto, cpu, cuda, cuda:1, mps and so on", "train.device"))
    add(
        "--max-steps",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="stop after the run's N-th optimizer step, counted from its start; 0 does not stop",
    )


def flag_overrides(args: argparse.Namespace) -> list[str]:
    """The flags as overrides of settings; ``ConfigError`` for a loss scale that is not a number or "dynamic"."""
    values = {key: getattr(args, flag) for flag, key in FLAG_KEYS.items() if getattr(args, flag) is not None}
    if args.opt_level:
        values["train.amp"] = OPT_LEVELS[args.opt_level]
    if "train.loss_scale" in values:
        values["train.loss_scale"] = _parse_loss_scale(values["train.loss_scale"])
    if args.warmup is False:
        values["optim.warmup_epochs"] = 0
    # Strings, numbers and lists in JSON are valid TOML too.
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def _parse_loss_scale(text: str) -> float:
    """A fixed loss scale; 0 for "dynamic"."""
    if text == "dynamic":
        return 0.0
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"--loss-scale must be a number or dynamic, not {text!r}") from error
