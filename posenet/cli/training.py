"""A training run from flags; shared by the training tools."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from posenet.cli.training_options import OPT_LEVELS, flag_overrides
from posenet.devices.runtime import Runtime
from posenet.settings import Config
from posenet.training import run
from posenet.training.callbacks import TrainingCallback

_log = logging.getLogger(__name__)


def train(args: argparse.Namespace, make_runtime: Callable[[torch.device], Runtime] = Runtime) -> None:
    """Run the training that the flags define. ``make_runtime`` creates the runtime for the configured device."""
    run.train(
        args.config,
        args.overrides + flag_overrides(args),
        resume=_resume(args.resume),
        warmup=bool(args.warmup),
        max_steps=args.max_steps,
        callbacks=[ApexNote(args.opt_level)] if args.opt_level else [],
        make_runtime=make_runtime,
    )


def _resume(flag: str | None) -> bool | str:
    """``--resume`` is None without the flag, and empty without its value."""
    if flag is None:
        return False
    return flag or True


class ApexNote(TrainingCallback):
    """Logs which setting replaces an option of Apex; in the run's log too, which is open when a callback starts."""

    def __init__(self, opt_level: str) -> None:
        self.opt_level = opt_level

    def on_start(self, config: Config, folder: Path) -> None:
        _log.info("--opt-level %s is an option of Apex; using --amp %s", self.opt_level, OPT_LEVELS[self.opt_level])
