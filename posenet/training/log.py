"""What a run reports: its lines in the log, its progress bar, and callbacks for its files and the code of a user."""

import contextlib
import importlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from posenet.checkpoints.folder import LOCK_FILE
from posenet.devices.device import peak_memory
from posenet.errors import ConfigError, DataError, PosenetError
from posenet.extensions import load_extension
from posenet.files import write_atomically
from posenet.images import write_image
from posenet.messages import MessageFormatter, pluralize, to_single_line
from posenet.progress_bar import progress_bar
from posenet.settings import Config, LogConfig, config_to_toml
from posenet.settings.reading import SETTINGS_FILE
from posenet.settings.sections import advise_on_height
from posenet.training.bad_steps import BadValue
from posenet.training.inputs import describe_paths
from posenet.visualization.curves import CURVES_FILE, LOG_FILE, has_matplotlib, write_curves

if TYPE_CHECKING:
    from posenet.training.run import Run

TEXT_LOG = "log.txt"

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


def refuse_files_of_others(folder: Path) -> None:
    """Raise ``DataError`` if a folder that no run has used has a file under a name that a run writes."""
    if (folder / LOCK_FILE).exists():
        return
    for name in (TEXT_LOG, LOG_FILE, CURVES_FILE, SETTINGS_FILE):
        if (folder / name).is_file():
            raise DataError(f"{folder / name} was not written by a run; move it, or give --set checkpoint.path=DIR")


@contextlib.contextmanager
def text_log(folder: Path) -> Iterator[None]:
    """Write all messages of the package to ``log.txt`` in a folder, and an error that ends the context.

    Other handlers, such as those of a program that trains, get the messages that they would get without it.
    """
    file = logging.FileHandler(folder / TEXT_LOG, encoding="utf-8")
    file.setLevel(logging.INFO)
    file.setFormatter(MessageFormatter("%(asctime)s  %(mark)s%(message)s", "%Y-%m-%d %H:%M:%S"))
    # By default a full disk prints a traceback for every message. The other logs warn of it.
    file.handleError = lambda record: None  # type: ignore[method-assign]
    level, shown_level = _package_logger.level, _package_logger.getEffectiveLevel()
    others = [*_package_logger.handlers, *logging.getLogger().handlers]

    def is_shown(record: logging.LogRecord) -> bool:
        """Whether a record would be logged without this context."""
        return record.levelno >= shown_level or record.name.partition(".")[0] != _package_logger.name

    for handler in others:
        handler.addFilter(is_shown)
    _package_logger.setLevel(min(logging.INFO, shown_level))
    _package_logger.addHandler(file)
    try:
        yield
    except Exception as error:
        text = to_single_line(str(error) if isinstance(error, PosenetError) else repr(error))
        file.handle(logging.LogRecord(_log.name, logging.ERROR, "", 0, text, None, None))
        raise
    finally:
        _package_logger.removeHandler(file)
        _package_logger.setLevel(level)
        for handler in others:
            handler.removeFilter(is_shown)
        with contextlib.suppress(OSError):  # of a full disk
            file.close()


class TrainingCallback:
    """Receives the measurements of a training run; a subclass overrides the methods that it needs.

    Only rank 0 calls the methods, in the order ``on_start``, then ``on_step``, ``on_skip``, ``on_drawing`` and
    ``on_epoch`` as training goes on, and ``on_end``. Training waits for each call.

    An exception in ``on_start`` ends the run before its first step. Later, the first exception of a method is logged as
    a warning, and the method is called again: a failing log, as on a full disk, does not end a run.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        """The run starts or resumes, with these settings, in this folder."""

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Every ``log.every_steps`` optimizer steps and at the end of an epoch; ``step`` counts from the run's start.

        Args:
            values: the "train" entry of log.jsonl: ``epoch`` (completed ones), ``loss`` (mean of the epoch so far; None
                if all its steps were skipped), ``lr``, ``samples_per_s``, ``data_wait`` (share of the time),
                ``gradient_norm`` (before clipping; mean since the last call, None if all steps were skipped). On CUDA
                devices also ``memory_gib``, the most that tensors on rank 0's device had so far.
        """
        self.on_values("train", step, values)

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        """A step was skipped: ``name`` ("loss" or "gradient norm"), ``value`` as a text, ``limit``, ``image_ids``."""
        self.on_values("skip", step, values)

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        """An epoch has ended and was validated: ``epoch`` (from 1), ``train_loss``, ``val_loss`` (None without
        validation samples) and, after an evaluation, COCO's scores such as ``AP``."""
        self.on_values("epoch", step, values)

    def on_values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """What the three methods above call, with "train", "skip" or "epoch", unless they are overridden."""

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        """Predictions were drawn beside annotations: (H, W, 3) uint8 BGR; ``name`` is unique, such as epoch_0001."""

    def on_end(self) -> None:
        """The run has ended or was stopped, also by an error. Called if ``on_start`` returned."""


def callbacks_of_run(settings: LogConfig) -> list[TrainingCallback]:
    """The logs of a run besides its text log: those whose packages are there, and those that ``log.callbacks`` names.

    A name stands for an object, or for a class or function that makes one from nothing. ``ConfigError`` if it cannot be
    imported, or stands for something else.
    """
    logs: list[TrainingCallback] = [RunFiles()]
    if settings.tensorboard:
        try:
            importlib.import_module("torch.utils.tensorboard")
            logs.append(TensorBoard())
        except ImportError:
            if settings.tensorboard is True:
                _log.warning("TensorBoard is not installed: pip install 'simplepose[tensorboard]'")
    for name in settings.callbacks:
        callback = load_extension("log.callbacks", name)
        if callable(callback) and not isinstance(callback, TrainingCallback):
            callback = callback()
        if not isinstance(callback, TrainingCallback):
            raise ConfigError(
                f"log.callbacks: {name} is a {type(callback).__name__}; give a subclass of posenet.TrainingCallback"
            )
        logs.append(callback)
    return logs


class RunFiles(TrainingCallback):
    """Writes ``settings.toml``, a line of ``log.jsonl`` for every measurement, the drawings, and ``curves.png``.

    Numbers that are not finite become null.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        start = "# All settings of a run; to compare it with another one: posenet config FOLDER OTHER_FOLDER\n\n"
        write_atomically(folder / SETTINGS_FILE, (start + config_to_toml(config)).encode("utf-8", "surrogateescape"))
        self.folder = folder
        self.file = open(folder / LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        super().on_epoch(step, values)
        if has_matplotlib():
            write_curves(self.folder)

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        write_image(self.folder / "pictures" / f"{name}.jpg", image)

    def on_end(self) -> None:
        self.file.close()

    def on_values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        finite = json.loads(json.dumps(line), parse_constant=lambda name: None)
        self.file.write(json.dumps(finite) + "\n")
        self.file.flush()


class TensorBoard(TrainingCallback):
    """Writes all numbers as ``train/NAME``, ``skip/NAME`` and ``epoch/NAME``, and the drawings."""

    def on_start(self, config: Config, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        self.writer.add_image("predictions", image[..., ::-1], step, dataformats="HWC")

    def on_end(self) -> None:
        self.writer.close()

    def on_values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, step)


class Report:
    """Reports the start of a run, its steps and epochs, and its end. All ranks call it; rank 0 alone has callbacks."""

    def __init__(self, run: "Run", callbacks: Sequence[TrainingCallback]) -> None:
        self.run = run
        self.callbacks = callbacks
        self._started: list[TrainingCallback] = []
        self._warned: list[tuple[TrainingCallback, str]] = []

    def describe_run(self) -> None:
        """Log the network, the data and the length of the run; its validation and folder."""
        run, config = self.run, self.run.config
        parameters = sum(parameter.numel() for parameter in run.network.parameters())
        length = f"{pluralize(config.train.epochs, 'epoch')} of {pluralize(run.batches.steps_per_epoch, 'step')}"
        _log.info(
            f"Training {pluralize(config.model.stacks, 'stack')} of width {config.model.width} "
            f"({parameters / 1e6:.1f} M parameters) on {pluralize(run.batches.samples_per_epoch, 'sample')} of "
            f"{describe_paths(run.train_data)}, {length}"
        )
        validation = "no validation loss (data.val)" if run.val_data is None else "validation loss after every epoch"
        if run.coco_validation is not None:
            every = config.train.evaluate_every
            validation += f", AP after every {pluralize(every, 'epoch').removeprefix('1 ')} and the last"
        _log.info("The run is in %s; %s", run.folder.path, validation)
        if advice := advise_on_height(config):
            _log.warning(advice)

    def start(self) -> None:
        """Call ``on_start`` of each callback, up to the first that raises an exception."""
        for callback in self.callbacks:
            callback.on_start(self.run.config, self.run.folder.path)
            self._started.append(callback)

    def call(self, method: str, *args: Any) -> None:
        """Call another method of each callback; warn of the first exception of each method."""
        for callback in self._started:
            try:
                getattr(callback, method)(*args)
            except Exception as error:  # the code of a user can raise anything
                if (callback, method) not in self._warned:
                    self._warned.append((callback, method))
                    name, reason = f"{type(callback).__name__}.{method}", f"{type(error).__name__}: {error}"
                    _log.warning("the callback %s failed, and training continues: %s", name, reason)

    def close(self) -> None:
        """End the callbacks that were started, the last first."""
        self._started.reverse()
        self.call("on_end")

    def epoch_bar(self) -> "tqdm[Any]":
        """The bar over the steps of the current epoch."""
        progress, steps = self.run.progress, self.run.batches.steps_per_epoch
        title = f"epoch {progress.epoch + 1}/{self.run.config.train.epochs}"
        return progress_bar(title=title, total=steps, unit="step", done=progress.step, leave=False)

    def step(self, bar: "tqdm[Any]", lr: float) -> None:
        """Report a step if one is due."""
        run, progress = self.run, self.run.progress
        bar.update()
        if progress.total_steps % run.config.log.every_steps and progress.step < run.batches.steps_per_epoch:
            return
        loss = progress.mean_loss
        speed = run.batches.read_speed()
        speed["samples_per_s"] *= run.runtime.world_size
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{speed['samples_per_s']:.1f} samples/s, data wait {speed['data_wait']:.0%}",
            refresh=False,
        )
        norms = run.train_step.gradient_norms
        values = {"epoch": progress.epoch, "loss": loss, "lr": lr, **speed}
        values["gradient_norm"] = fmean(norms) if norms else None
        norms.clear()
        if (peak := peak_memory(run.runtime.device)) is not None:
            values["memory_gib"] = round(peak / 2**30, 2)
        self.call("on_step", progress.total_steps, values)

    def skipped_step(self, bad: BadValue, image_ids: Sequence[int]) -> None:
        """Report the bad value of a skipped step, and its images."""
        step = self.run.progress.total_steps
        _log.warning("Step %d skipped: %s; image ids %s", step, bad, image_ids)
        values = {"name": bad.name, "value": str(bad.value), "limit": bad.limit, "image_ids": image_ids}
        self.call("on_skip", step, values)

    def epoch(self, epoch: int, scores: dict[str, Any]) -> None:
        """Report the scores of an epoch, its losses, and what was wrong in it."""
        run, progress = self.run, self.run.progress
        values: dict[str, Any] = {"epoch": epoch, "train_loss": progress.mean_loss} | scores
        self.call("on_epoch", progress.total_steps, values)
        texts = [
            f"{name} {values[name]:.4f}"
            for name in ("train_loss", "val_loss", "AP", "AR")
            if values.get(name) is not None
        ]
        if progress.skipped:  # for a bad loss or gradient, or a loss scale of fp16 that was too large
            texts.append(f"{pluralize(progress.skipped, 'step')} skipped")
        _log.info("Epoch %d of %d  %s", epoch, run.config.train.epochs, "  ".join(texts))

    def stopped(self, has_done_max_steps: bool) -> None:
        """Report where a run was stopped that can continue, and how."""
        progress = self.run.progress
        how = " with more --max-steps, or without," if has_done_max_steps else ""
        position = f"step {progress.total_steps} (epoch {progress.epoch + 1})"
        _log.info("Stopped after %s, saved in %s; --resume%s continues", position, self.run.folder.last, how)

    def end(self) -> None:
        """Report why the run has ended, its best score, and the checkpoint to use."""
        run, progress, folder = self.run, self.run.progress, self.run.folder
        why = f"Stopped early after {pluralize(progress.stale, 'score')} without a better one"
        if progress.epoch >= run.config.train.epochs:
            why = f"Finished {pluralize(progress.epoch, 'epoch')}"
        scores = [f"{name} {score:.4f}" for name, score in progress.best_score.items()]
        best = f"Best {scores[0]}: {folder.best}" if scores else f"The weights: {folder.last}"
        command = f"posenet predict IMAGES --checkpoint {folder.best if scores else folder.last}"
        if run.config.model.network:
            command += f" --set model.network={run.config.model.network}"
        _log.info("%s. %s; next: %s", why, best, command)
