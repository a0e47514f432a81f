"""Train a PoseNet on one device; Ctrl-C finishes the step and saves, --resume continues."""

from __future__ import annotations

import argparse
import json
import logging
import os

from posenet.cli.options import CHECKPOINT_HELP, add_config_options, add_switch, non_negative_int, setting_help
from posenet.devices.launch import is_restarted, launched_processes
from posenet.devices.runtime import Runtime
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError
from posenet.training.train import train

FLAG_SETTINGS = {
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
"""The flags, and the setting that each of them overrides. ``--warmup`` and ``--resume`` need more than that."""

OPT_LEVELS = {"O0": "off", "O1": "fp16", "O2": "fp16", "O3": "fp16"}
"""Apex's optimization levels and the precision that replaces them."""

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of every training tool. The help of a flag names the setting that it overrides."""
    add_config_options(parser)
    run = parser.add_argument_group("run")
    run.add_argument(
        "-r",
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue from this checkpoint or run folder; without PATH, from the newest intact checkpoint of the "
        "run's folder, or start a new run if it contains none (default: start a new run)",
    )
    run.add_argument("--no-resume", dest="resume", action="store_const", const=None, help=argparse.SUPPRESS)
    run.add_argument(
        "-p",
        "--checkpoint-path",
        metavar="DIR",
        help="folder of the run (checkpoint.path; default: checkpoints/NAME of the experiment file)",
    )
    run.add_argument("--epochs", type=int, metavar="N", help=setting_help("passes over the data", "train.epochs"))
    run.add_argument(
        "--max-steps",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="stop after the run's N-th optimizer step, counted from its start; 0 does not stop",
    )
    run.add_argument(
        "--patience",
        type=non_negative_int,
        metavar="N",
        help=setting_help("stop after N epochs without a better score; 0 does not stop", "train.patience"),
    )
    run.add_argument(
        "--print-freq", type=int, metavar="N", help=setting_help("steps between log lines", "log.every_steps")
    )

    network = parser.add_argument_group("network")
    network.add_argument(
        "--weights",
        metavar="FILE",
        help=setting_help(f"fine-tune from weights: {CHECKPOINT_HELP}", "train.weights"),
    )
    network.add_argument(
        "--teacher",
        metavar="FILE",
        help=setting_help(f"learn the maps of a stronger network: {CHECKPOINT_HELP}", "train.teacher"),
    )
    network.add_argument(
        "--freeze",
        nargs="+",
        metavar="PATTERN",
        help=setting_help(
            "freeze the parameters with names that match a glob pattern, or all-but-heads", "train.freeze"
        ),
    )
    network.add_argument("--no-freeze", dest="freeze", action="store_const", const=[], help=argparse.SUPPRESS)

    steps = parser.add_argument_group("optimization")
    steps.add_argument(
        "--batch-size", type=int, metavar="N", help=setting_help("samples per process and batch", "train.batch_size")
    )
    steps.add_argument("--lr", type=float, metavar="X", help=setting_help("learning rate", "optim.lr"))
    add_switch(
        steps,
        "--scale-lr",
        default=None,
        help=setting_help("multiply the learning rate by the number of processes", "optim.scale_lr"),
    )
    add_switch(
        steps,
        "--warmup",
        default=None,
        help=setting_help(
            "raise the learning rate over the first epochs; over the default number if the configuration has 0",
            "optim.warmup_epochs",
        ),
    )
    steps.add_argument(
        "--max-grad-norm",
        type=float,
        metavar="X",
        help=setting_help("clip the norm of the gradient to this; 0 does not clip", "optim.max_grad_norm"),
    )

    devices = parser.add_argument_group("device and precision")
    devices.add_argument("--device", metavar="D", help=setting_help("auto, cpu, cuda, cuda:1, mps ...", "train.device"))
    devices.add_argument(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        help=setting_help("precision of the network; off is float32, auto depends on the device", "train.amp"),
    )
    devices.add_argument(
        "--opt-level", choices=OPT_LEVELS, help="Apex's name for --amp: O0 is off, the others are fp16"
    )
    devices.add_argument(
        "--loss-scale",
        type=_loss_scale,
        metavar="X",
        help=setting_help("fixed loss scale for fp16; 0 and dynamic adapt it", "train.loss_scale"),
    )
    add_switch(
        devices,
        "--channels-last",
        default=None,
        help=setting_help("channels-last weights, faster in half precision; auto uses it there", "train.channels_last"),
    )
    add_switch(
        devices,
        "--sync-bn",
        default=None,
        help=setting_help("BatchNorm statistics over all processes", "parallel.sync_bn"),
    )
    add_switch(
        devices,
        "--compile",
        default=None,
        help=setting_help("compile targets, network and loss with torch.compile", "parallel.compile"),
    )


def run(args: argparse.Namespace) -> int:
    """Train on one device; return the exit status."""
    refuse_launcher()
    return train_with_flags(args, Runtime())


def train_with_flags(args: argparse.Namespace, runtime: Runtime) -> int:
    """Run the training that the flags define.

    Returns:
        The exit status: 0, or ``STOPPED_STATUS`` if a signal has stopped the run and ``--resume`` continues it.
    """
    if args.opt_level:
        _log.info("--opt-level %s is an option of Apex; using --amp %s", args.opt_level, OPT_LEVELS[args.opt_level])
    result = train(
        args.config,
        args.overrides + flag_overrides(args),
        resume=_resume(args),
        warmup=bool(args.warmup),
        max_steps=args.max_steps,
        runtime=runtime,
    )
    return STOPPED_STATUS if result.stopped else 0


def refuse_launcher() -> None:
    """Raise ``ConfigError`` if srun or torchrun has started several processes of a tool that trains in one process."""
    count = launched_processes(os.environ)
    if count > 1:
        raise ConfigError(
            f"a launcher has started {count} processes of this tool, and each would be a run of its own; use posenet "
            "train-distributed for one run, or start the launcher with one process"
        )


def flag_overrides(args: argparse.Namespace) -> list[str]:
    """The flags as overrides of settings."""
    values = {key: getattr(args, flag) for flag, key in FLAG_SETTINGS.items() if getattr(args, flag) is not None}
    if args.opt_level:
        values["train.amp"] = OPT_LEVELS[args.opt_level]
    if args.warmup is False:
        values["optim.warmup_epochs"] = 0
    # Strings, numbers and lists in JSON are valid TOML too.
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def _resume(args: argparse.Namespace) -> bool | str:
    """What to resume: True is the newest checkpoint of the run's folder.

    ``--resume`` is None without the flag, and empty without its value. A run that its launcher has started again
    continues from its newest checkpoint.
    """
    resume: str | None = args.resume
    if is_restarted(os.environ):
        _log.info("The launcher has started the run again: resuming from its newest checkpoint")
        if not resume or args.checkpoint_path:
            return True
        return os.path.dirname(resume) if os.path.isfile(resume) else resume
    return False if resume is None else resume or True


def _loss_scale(text: str) -> float:
    """Argument type: a fixed loss scale; 0 for "dynamic"."""
    try:
        return 0.0 if text == "dynamic" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor dynamic") from None
