"""Train a PoseNet on one device; Ctrl-C finishes the step and saves, --resume continues."""

import argparse
import json
import logging
from typing import TYPE_CHECKING

from posenet.annotations.find_annotations import are_annotations
from posenet.cli.options import (
    CHECKPOINT_HELP,
    PRECISIONS,
    add_config_options,
    add_setting,
    add_switch,
    non_negative_int,
)
from posenet.cli.processes import refuse_launcher
from posenet.data.store_list import require_store_files
from posenet.devices.signals import STOPPED_STATUS
from posenet.settings import load_config

if TYPE_CHECKING:
    from posenet.devices.runtime import Runtime

APEX_OPT_LEVELS = {"O0": "off", "O1": "fp16", "O2": "fp16", "O3": "fp16"}
"""The precision for each ``--opt-level`` of Apex, which recipes for the original code give."""

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the annotations and the flags of every training tool."""
    group = parser.add_argument_group("annotations, in place of data.train")
    add = group.add_argument
    text = (
        "data.yaml (YOLO-pose), .json (COCO keypoints or Label Studio), or a folder with one (posenet docs custom_data)"
    )
    add("data", nargs="?", metavar="ANNOTATIONS", help=text)
    add("--images", metavar="DIR", help="folder of the images; by default, looked for beside the annotations")
    text = "annotations for validation; by default, those of the data set, or a split"
    add("--val", metavar="FILE", help=text)
    add("--val-images", metavar="DIR", help="folder of their images; by default, --images")
    text = "stop before the training: check and build the data, and draw the labels for a look at them"
    add_switch(group, "--prepare", text)
    add_config_options(parser)

    group = parser.add_argument_group("run")
    text = "continue from this checkpoint or run folder; without PATH, from the newest intact one of the run's folder"
    group.add_argument("-r", "--resume", nargs="?", default=False, const=True, metavar="PATH", help=text)
    text = "folder of the run (checkpoint.path; default: checkpoints/NAME of the experiment)"
    group.add_argument("-p", "--checkpoint-path", dest="checkpoint.path", metavar="DIR", help=text)
    add_setting(group, "--epochs", "train.epochs", "passes over the data")
    text = "stop after the run's N-th optimizer step, counted from its start; 0 does not stop"
    group.add_argument("--max-steps", type=non_negative_int, default=0, metavar="N", help=text)
    add_setting(group, "--print-freq", "log.every_steps", "steps between log lines", short="-f")

    group = parser.add_argument_group("network")
    add_setting(group, "--weights", "train.weights", f"fine-tune from weights: {CHECKPOINT_HELP}", metavar="FILE")
    text = "freeze the parameters with names that match a glob pattern, one or more; without one, all-but-heads"
    add_setting(group, "--freeze", "train.freeze", text, nargs="*", metavar="PATTERN")

    group = parser.add_argument_group("optimization")
    add_setting(group, "--lr", "optim.lr", "learning rate")
    text = "raise the learning rate over the first epochs; over the default number if the configuration has 0"
    switch = argparse.BooleanOptionalAction
    add_setting(group, "--warmup", "optim.warmup_epochs", text, short="-w", dest="warmup", action=switch)
    add_setting(group, "--max-grad-norm", "optim.max_grad_norm", "clip the norm of the gradient to this; 0 is off")

    group = parser.add_argument_group("device and precision")
    add_setting(group, "--device", "train.device", "auto, cpu, cuda, cuda:1, mps ...", metavar="D")
    precision = group.add_mutually_exclusive_group()
    text = "precision of the network; off is float32, auto and --amp alone choose for the device"
    add_setting(precision, "--amp", "train.amp", text, choices=PRECISIONS, nargs="?", const="auto")
    precision.add_argument("--opt-level", choices=APEX_OPT_LEVELS, help=argparse.SUPPRESS)
    add_setting(group, "--loss-scale", "train.loss_scale", "fixed loss scale for fp16; 0 adapts it")
    add_setting(group, "--sync-bn", "parallel.sync_bn", "BatchNorm statistics over all processes")
    # A flag of torch.distributed.launch, which also sets the environment.
    group.add_argument("--local-rank", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace, runtime: "Runtime | None" = None) -> int:
    """Train in this process alone; return the exit status."""
    refuse_launcher("use posenet train-distributed (tools/train_distributed.py) for one run of all")
    check_settings(args)
    return train_with_flags(args, runtime)


def check_settings(args: argparse.Namespace) -> None:
    """Refuse wrong settings and missing stores before PyTorch is imported; a checkpoint may have others."""
    if args.data is None and isinstance(args.resume, bool) and not are_annotations(args.config):
        data = load_config(args.config, overrides(args)).data
        if not args.resume:
            require_store_files(data.train)
            require_store_files(data.val)


def train_with_flags(args: argparse.Namespace, runtime: "Runtime | None") -> int:
    """Train as the flags say; return the exit status, ``STOPPED_STATUS`` if a signal has stopped the run."""
    from posenet.training.train import train

    if args.opt_level:
        amp = APEX_OPT_LEVELS[args.opt_level]
        _log.info("--opt-level %s is an option of Apex; using --amp %s", args.opt_level, amp)
    result = train(
        args.config if args.data is None else args.data,
        overrides(args),
        experiment=None if args.data is None else args.config,
        images=args.images,
        val=args.val,
        val_images=args.val_images,
        prepare=args.prepare,
        resume=args.resume,
        warmup=bool(args.warmup),
        max_steps=args.max_steps,
        runtime=runtime,
    )
    return STOPPED_STATUS if result.stopped else 0


def overrides(args: argparse.Namespace) -> list[str]:
    """The overrides of settings, and after them the flags as such."""
    values = {key: value for key, value in vars(args).items() if "." in key and value is not None}
    if values.get("train.freeze") == []:
        values["train.freeze"] = ["all-but-heads"]
    if args.opt_level:
        values["train.amp"] = APEX_OPT_LEVELS[args.opt_level]
    if args.warmup is False:
        values["optim.warmup_epochs"] = 0
    # Strings, numbers and lists in JSON are valid TOML too.
    return [*args.overrides, *(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]
