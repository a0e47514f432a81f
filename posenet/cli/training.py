"""A training run from flags; shared by the training tools."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from posenet.cli.training_options import OPT_LEVELS, flag_overrides
from posenet.devices.rank_info import rank_info_from_environment
from posenet.devices.runtime import Runtime
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError
from posenet.settings import Config
from posenet.training import run
from posenet.training.callbacks import TrainingCallback

_log = logging.getLogger(__name__)


def train(args: argparse.Namespace, make_runtime: Callable[[torch.device], Runtime] = Runtime) -> int:
    """Run the training that the flags define. ``make_runtime`` creates the runtime for the configured device.

    Returns:
        The exit status: 0, or ``STOPPED_STATUS`` if a signal has stopped the run and ``--resume`` continues it.
    """
    result = run.train(
        args.config,
        args.overrides + flag_overrides(args),
        resume=_resume(args.resume),
        warmup=bool(args.warmup),
        max_steps=args.max_steps,
        callbacks=[ApexNote(args.opt_level)] if args.opt_level else [],
        make_runtime=make_runtime,
    )
    return STOPPED_STATUS if result.stopped else 0


def refuse_launcher(environment: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if srun or torchrun has started several processes of a tool that trains in one process."""
    rank_info = rank_info_from_environment(environment)
    if rank_info is not None and rank_info.world_size > 1:
        raise ConfigError(
            f"a launcher has started {rank_info.world_size} processes of this tool, and each would be a run of its "
            "own; use tools/train_distributed.py for one run, or start the launcher with one process"
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
