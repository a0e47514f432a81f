"""One training run from its settings, new or resumed: ``train``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import logging.handlers
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.contents import config_of_checkpoint, require_fitting_weights
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.run_lock import run_lock
from posenet.checkpoints.run_status import NoStatusFile, RunStatusFile
from posenet.devices.cudnn import cudnn_flags
from posenet.devices.device import select_device
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import pluralize
from posenet.settings import Config, OptimConfig, config_differences, load_config
from posenet.training.agreement import require_same_run, require_shared_folder
from posenet.training.callbacks import TrainingCallback
from posenet.training.device_settings import (
    choose_device_settings,
    describe_device_settings,
    describe_kept_settings,
)
from posenet.training.distillation import load_teacher
from posenet.training.progress import Progress
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.run_state import require_run
from posenet.training.schedule import lr_factor
from posenet.training.setup import build_network, build_trainer, open_stores

MAX_EARLY_MESSAGES = 1000
"""Messages to remember for the run's log until it is opened."""
RUNS_FOLDER = Path("checkpoints")
"""Parent of the default folder of a run."""

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """Where a run is when ``train`` returns."""

    folder: Path
    """Folder of the run: ``last.pth``, ``best.pth``, ``log.txt``, ``log.jsonl`` and so on."""
    finished: bool
    """Whether the last epoch was completed. False after a stop signal, ``max_steps`` or early stopping."""
    epochs: int
    """Completed epochs."""
    steps: int
    """Optimizer steps since the start of the run, skipped ones included."""
    best: dict[str, float]
    """The score of ``best.pth`` by name, "AP" or "val_loss"; empty if there is none."""
    stopped: bool = False
    """Whether a stop signal has ended the run early; ``resume`` continues it."""


class ResumedCheckpoint(NamedTuple):
    """The checkpoint to resume, and its content."""

    path: Path
    state: dict[str, Any]


def train(
    config: Config | str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    resume: bool | str | Path = False,
    warmup: bool = False,
    max_steps: int = 0,
    callbacks: Sequence[TrainingCallback] = (),
    progress: bool = True,
    make_runtime: Callable[[torch.device], Runtime] = Runtime,
) -> TrainingResult:
    """Train a network, as ``tools/train.py`` does, and save it in the folder ``checkpoint.path``.

    Ctrl-C, SIGTERM and SIGUSR1 finish the step, save and return; a second Ctrl-C raises ``KeyboardInterrupt``. This
    works only in the main thread. With workers for data (``data.workers``), a script calls this function below
    ``if __name__ == "__main__":``.

    Args:
        config: an experiment file, or all settings of the run. None means the defaults.
        overrides: ``"section.key=value"`` pairs that override settings.
        resume: True continues from the newest intact checkpoint of the run's folder, or starts a new run if there is
            none. A path is a checkpoint or the folder of a run. The settings in the checkpoint are kept, except those
            in an experiment file and in ``overrides``; a ``Config`` replaces them all.
        warmup: if ``optim.warmup_epochs`` is 0, use its default.
        max_steps: stop after this many optimizer steps since the start of the run; 0 does not stop.
        callbacks: receive the measurements, in addition to the logs in the run's folder.
        progress: whether to show progress bars.
        make_runtime: creates the runtime for the configured device, such as one of several processes.

    Raises:
        PosenetError: a setting, a file or the data cannot be used, or the training cannot continue.
    """
    with _remember_messages() as early_messages:
        settings, resumed = _configure(config, list(overrides), resume, warmup)

        def open_log(config: Config, runtime: Runtime) -> RunLog | SilentLog:
            if not runtime.is_main:
                return SilentLog()
            return RunLog(Path(config.checkpoint.path), config, callbacks, progress)

        return _train(settings, resumed, max_steps, make_runtime, open_log, early_messages)


@contextlib.contextmanager
def _remember_messages() -> Iterator[logging.handlers.MemoryHandler]:
    """Remember the messages of the package, also those of level INFO, until the run's log is open."""
    early_messages = logging.handlers.MemoryHandler(MAX_EARLY_MESSAGES, flushLevel=logging.CRITICAL + 1)
    previous_level = _package_logger.level
    if previous_level == logging.NOTSET:
        _package_logger.setLevel(logging.INFO)
    _package_logger.addHandler(early_messages)
    try:
        yield early_messages
    finally:
        _package_logger.removeHandler(early_messages)
        _package_logger.setLevel(previous_level)


def _train(
    config: Config,
    resumed: ResumedCheckpoint | None,
    max_steps: int,
    make_runtime: Callable[[torch.device], Runtime],
    open_log: Callable[[Config, Runtime], RunLog | SilentLog],
    early_messages: logging.handlers.MemoryHandler,
) -> TrainingResult:
    folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep)
    continues_run = resumed is not None and resumed.path.parent.resolve() == folder.path.resolve()
    _refuse_another_run(folder, continues_run)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    torch.manual_seed(config.train.seed)
    runtime = make_runtime(select_device(config.train.device))
    with contextlib.ExitStack() as stack:
        stack.callback(runtime.close)
        # All training batches have the same shape.
        stack.enter_context(cudnn_flags(benchmark=True, tf32=config.train.tf32))
        _log.info(describe_device_settings(config, runtime.device))
        config = choose_device_settings(config, runtime.device)
        if resumed is not None and (note := describe_kept_settings(config, resumed.state, runtime.device)):
            _log.info(note)
        train_store, val_store = open_stores(config, stack)
        network = build_network(config, fine_tune=resumed is None)
        teacher = load_teacher(config, runtime.device)
        status: RunStatusFile | NoStatusFile = NoStatusFile()
        if runtime.is_main:
            stack.enter_context(run_lock(folder.path))
            # Another run may have written checkpoints between the first check and the lock.
            _refuse_another_run(folder, continues_run)
            status = stack.enter_context(RunStatusFile(folder.path))
        require_shared_folder(runtime, folder.path)
        require_same_run(runtime, config, train_store, val_store, max_steps)
        log = open_log(config, runtime)
        stack.callback(log.close)
        _package_logger.removeHandler(early_messages)
        log.start(early_messages)
        trainer = build_trainer(config, network, runtime, train_store, val_store, log, max_steps, teacher)
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
            return _result(folder.path, trainer.progress, finished=True, stopped=False)
        _log.info(_describe_lr(config, runtime.world_size))
        finished = trainer.run()
        if finished:
            _log.info("Finished %s; the run is in %s", epochs, folder.path)
        if trainer.was_interrupted:
            status.set_stopped()
        return _result(folder.path, trainer.progress, finished, trainer.was_interrupted)


def _result(folder: Path, progress: Progress, finished: bool, stopped: bool) -> TrainingResult:
    best = {}
    if math.isfinite(progress.best):
        best[progress.best_kind] = -progress.best if progress.best_kind == "val_loss" else progress.best
    return TrainingResult(folder, finished, progress.epoch, progress.total_steps, best, stopped)


def _refuse_another_run(folder: CheckpointFolder, continues_run: bool) -> None:
    if folder.has_checkpoints() and not continues_run:
        raise CheckpointError(
            f"{folder.path} already contains a run; continue it with --resume, or choose another folder "
            "with --checkpoint-path"
        )


def _configure(
    config: Config | str | Path | None, overrides: list[str], resume: bool | str | Path, warmup: bool
) -> tuple[Config, ResumedCheckpoint | None]:
    """The settings of the run, and the checkpoint to resume; None for a new run."""
    resumed = _find_checkpoint(config, overrides, resume)
    if resumed is None:
        return _settings_of_new_run(config, overrides, warmup), None
    path, state = resumed
    require_run(state, path)
    saved = config_of_checkpoint(state, path) or Config()
    # The folder may have moved since the checkpoint was written.
    saved = _with_folder(saved, path.parent)
    if isinstance(config, Config):
        base = config if config.checkpoint.path else _with_folder(config, path.parent)
        settings = load_config(None, overrides, base=base)
    else:
        settings = load_config(config, overrides, base=saved)
    settings = _with_warmup(settings) if warmup else settings
    if not settings.model.skeleton.predicts_like(saved.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton; leave that out, or start "
            "a new run with --weights in another folder"
        )
    changed = config_differences(saved, settings)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(settings, state, path)
    return settings, resumed


def _find_checkpoint(
    config: Config | str | Path | None, overrides: list[str], resume: bool | str | Path
) -> ResumedCheckpoint | None:
    """The checkpoint to resume; None for a new run."""
    if resume is False:
        return None
    if resume is True:
        folder = Path(_settings_of_new_run(config, overrides).checkpoint.path)
        found = CheckpointFolder(folder).newest_intact()
        if found is None:
            _log.info(
                "%s contains no checkpoint: starting a new run; to resume another one, use --resume FOLDER/last.pth",
                folder,
            )
            return None
        return ResumedCheckpoint(*found)
    path = Path(resume)
    if not path.is_dir():
        return ResumedCheckpoint(path, read_checkpoint(path))
    found = CheckpointFolder(path).newest_intact()
    if found is None:
        raise CheckpointError(f"{path} contains no checkpoint to resume; leave out --resume to start a new run")
    return ResumedCheckpoint(*found)


def _settings_of_new_run(config: Config | str | Path | None, overrides: list[str], warmup: bool = False) -> Config:
    """The settings with a folder: by default, one named after the experiment file."""
    if isinstance(config, Config):
        settings = load_config(None, overrides, base=config)
        name = "run"
    else:
        settings = load_config(config, overrides)
        name = "run" if config is None else Path(config).stem
    if not settings.checkpoint.path:
        settings = _with_folder(settings, RUNS_FOLDER / name)
    return _with_warmup(settings) if warmup else settings


def _with_warmup(settings: Config) -> Config:
    """The settings with the default warmup if they have none."""
    if settings.optim.warmup_epochs:
        return settings
    return dataclasses.replace(
        settings, optim=dataclasses.replace(settings.optim, warmup_epochs=OptimConfig.warmup_epochs)
    )


def _with_folder(settings: Config, folder: Path) -> Config:
    checkpoint = dataclasses.replace(settings.checkpoint, path=str(folder))
    return dataclasses.replace(settings, checkpoint=checkpoint)


def _describe_lr(config: Config, world_size: int) -> str:
    """The learning rate of all processes together, and the settings that determine it."""
    samples = config.train.batch_size * world_size * config.optim.accumulate
    lr = config.optim.lr * lr_factor(config.optim, world_size)
    processes = pluralize(world_size, "process", "processes")
    rule = f"optim.lr {config.optim.lr:g} x {processes}" if config.optim.scale_lr else "optim.lr, not scaled"
    return f"Learning rate {lr:g} ({rule}) for steps of {samples} samples"
