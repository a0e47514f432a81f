"""A training run from flags, new or resumed; shared by the training tools."""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.run_lock import run_lock
from posenet.checkpoints.weights import config_of_checkpoint, require_fitting_weights
from posenet.cli.training_options import flag_overrides, override
from posenet.devices.device import select_device
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import pluralize
from posenet.settings import Config, OptimConfig, config_differences, load_config
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.run_state import require_run
from posenet.training.schedule import lr_factor
from posenet.training.setup import build_network, build_trainer, open_stores

MAX_EARLY_MESSAGES = 1000
"""Messages to remember for the run's log until it is opened."""

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


class ResumedCheckpoint(NamedTuple):
    """The checkpoint to resume, and its content."""

    path: Path
    state: dict[str, Any]


def train(args: argparse.Namespace, make_runtime: Callable[[torch.device], Runtime] = Runtime) -> None:
    """Run the training that the flags define. ``make_runtime`` creates the runtime for the configured device."""
    early_messages = logging.handlers.MemoryHandler(MAX_EARLY_MESSAGES, flushLevel=logging.CRITICAL + 1)
    _package_logger.addHandler(early_messages)
    try:
        _train(args, make_runtime, early_messages)
    finally:
        _package_logger.removeHandler(early_messages)


def _train(
    args: argparse.Namespace,
    make_runtime: Callable[[torch.device], Runtime],
    early_messages: logging.handlers.MemoryHandler,
) -> None:
    config, resumed = _configure(args)
    folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep)
    continues_run = resumed is not None and resumed.path.parent.resolve() == folder.path.resolve()
    _refuse_another_run(folder, continues_run)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    torch.manual_seed(config.train.seed)
    runtime = make_runtime(select_device(config.train.device))
    with contextlib.ExitStack() as stack:
        stack.callback(runtime.close)
        train_store, val_store = open_stores(config, stack)
        network = build_network(config, fine_tune=resumed is None)
        if runtime.is_main:
            stack.enter_context(run_lock(folder.path))
            # Another run may have written checkpoints between the first check and the lock.
            _refuse_another_run(folder, continues_run)
        log = _open_log(config, runtime, early_messages)
        stack.callback(log.close)
        trainer = build_trainer(config, network, runtime, train_store, val_store, log, args.max_steps)
        stack.callback(trainer.close)
        if resumed is not None:
            trainer.load_state_dict(resumed.state, str(resumed.path))
            progress = trainer.progress
            position = f"epoch {progress.epoch + 1}, step {progress.step} of {trainer.input.steps_per_epoch}"
            _log.info("Resuming from %s: %s", resumed.path, position)
        if len(set(runtime.gather_objects(trainer.progress.total_steps))) > 1:
            raise CheckpointError(
                f"the processes do not all find the same checkpoint in {folder.path}; use a folder "
                "that all machines share"
            )
        epochs = pluralize(config.train.epochs, "epoch")
        if trainer.progress.epoch >= config.train.epochs:
            _log.info("%s has completed its %s already; --epochs adds more", folder.path, epochs)
            return
        _log.info(_describe_lr(config, runtime.world_size))
        if trainer.run():
            _log.info("Finished %s; the run is in %s", epochs, folder.path)


def _open_log(config: Config, runtime: Runtime, early_messages: logging.handlers.MemoryHandler) -> RunLog | SilentLog:
    """Open the log of the run, write the messages so far to it, and let it receive all further messages."""
    _package_logger.removeHandler(early_messages)
    folder = Path(config.checkpoint.path)
    log = RunLog(folder, config.log) if runtime.is_main else SilentLog()
    log.replay(early_messages)
    return log


def _refuse_another_run(folder: CheckpointFolder, continues_run: bool) -> None:
    if folder.has_checkpoints() and not continues_run:
        raise CheckpointError(
            f"{folder.path} already contains a run; continue it with --resume, or choose another folder "
            "with --checkpoint-path"
        )


def _configure(args: argparse.Namespace) -> tuple[Config, ResumedCheckpoint | None]:
    """The settings of the run, and the checkpoint to resume; None for a new run."""
    overrides = args.overrides + flag_overrides(args)
    resumed = _find_checkpoint(args, overrides)
    if resumed is None:
        return _with_folder_and_warmup(load_config(args.config, overrides), args), None
    path, state = resumed
    require_run(state, path)
    # The folder may have moved since the checkpoint was written.
    base = load_config(None, [override("checkpoint.path", str(path.parent))], base=config_of_checkpoint(state, path))
    config = _with_folder_and_warmup(load_config(args.config, overrides, base=base), args)
    if not config.model.skeleton.predicts_like(base.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton; leave that out, or start "
            "a new run with --weights in another folder"
        )
    changed = config_differences(base, config)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(config, state, path)
    return config, resumed


def _find_checkpoint(args: argparse.Namespace, overrides: list[str]) -> ResumedCheckpoint | None:
    """The checkpoint that ``--resume`` names; None for a new run.

    Without a path, it is the newest intact one of the run's folder; None if there is none.
    """
    if args.resume is None:
        return None
    if args.resume:
        path = Path(args.resume)
        if not path.is_dir():
            return ResumedCheckpoint(path, read_checkpoint(path))
        found = CheckpointFolder(path).newest_intact()
        if found is None:
            raise CheckpointError(f"{path} contains no checkpoint to resume; leave out --resume to start a new run")
        return ResumedCheckpoint(*found)
    folder = _with_folder_and_warmup(load_config(args.config, overrides), args).checkpoint.path
    found = CheckpointFolder(Path(folder)).newest_intact()
    if found is None:
        _log.info(
            "%s contains no checkpoint: starting a new run; to resume another one, use --resume FOLDER/last.pth", folder
        )
        return None
    return ResumedCheckpoint(*found)


def _with_folder_and_warmup(config: Config, args: argparse.Namespace) -> Config:
    """Add the default folder if none is configured, and the default warmup if ``--warmup`` is set without one."""
    overrides = []
    if not config.checkpoint.path:
        name = Path(args.config).stem if args.config else "run"
        overrides.append(override("checkpoint.path", str(Path("checkpoints") / name)))
    if args.warmup and not config.optim.warmup_epochs:
        overrides.append(override("optim.warmup_epochs", OptimConfig.warmup_epochs))
    return load_config(None, overrides, base=config)


def _describe_lr(config: Config, world_size: int) -> str:
    """The learning rate of all processes together, and the settings that determine it."""
    samples = config.train.batch_size * world_size * config.optim.accumulate
    lr = config.optim.lr * lr_factor(config.optim, world_size)
    processes = pluralize(world_size, "process", "processes")
    rule = f"optim.lr {config.optim.lr:g} x {processes}" if config.optim.scale_lr else "optim.lr, not scaled"
    return f"Learning rate {lr:g} ({rule}) for steps of {samples} samples"
