"""What a run reports: callbacks for its logs and for the code of a user."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import logging.handlers
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posenet.checkpoints.folder import LOCK_FILE
from posenet.errors import ConfigError, DataError, PosenetError
from posenet.extensions import load_extension
from posenet.files import write_atomically
from posenet.images import write_image
from posenet.messages import MessageFormatter, to_single_line
from posenet.settings import Config, LogConfig, config_to_toml
from posenet.settings.reading import SETTINGS_FILE
from posenet.visualization.curves import CURVES_FILE, LOG_FILE, has_matplotlib, write_curves

TEXT_LOG = "log.txt"
DRAWINGS_FOLDER = "pictures"
SAMPLES_FILE = "samples.jpg"
"""Some training samples as the network gets them; see ``train._draw_samples``."""

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


def refuse_files_of_others(folder: Path) -> None:
    """Raise ``DataError`` if a folder that no run has used has a file under a name that a run writes."""
    if (folder / LOCK_FILE).exists():
        return
    for name in (TEXT_LOG, LOG_FILE, CURVES_FILE, SAMPLES_FILE, SETTINGS_FILE):
        if (folder / name).is_file():
            raise DataError(f"{folder / name} was not written by a run; move it, or set checkpoint.path=DIR")


class TrainingCallback:
    """Receives the measurements of a training run; a subclass overrides the methods that it needs.

    Only rank 0 calls the methods, in the order ``on_start``, then ``on_step``, ``on_skip``, ``on_drawing`` and
    ``on_epoch`` as training goes on, and ``on_end``. Training waits for each call.

    An exception in ``on_start`` ends the run before its first step. Later, the first exception of a callback is logged
    as a warning, and the callback is called again: a failing log, as on a full disk, does not end a run.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        """The run starts or resumes, with these settings, in this folder."""

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Every ``log.every_steps`` optimizer steps and at the end of an epoch; ``step`` counts from the run's start.

        Args:
            values: the "train" entry of log.jsonl: ``epoch`` (completed ones), ``loss`` (mean of the epoch so far; None
                if all its steps were skipped), ``lr``, ``samples_per_s``, ``data_wait`` (share of the time),
                ``terms`` (of the loss, for every stack) and ``gradient_norm`` (before clipping; mean since the last
                call, None if all steps were skipped). On CUDA devices also ``memory_gib``, the most that tensors on
                rank 0's device had so far, and ``memory_share``, its share of the device's memory.
        """

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        """A step was skipped: ``name`` ("loss" or "gradient norm"), ``value`` as a text, ``limit``, ``reason``,
        ``image_ids``."""

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        """An epoch has ended and was validated: ``epoch`` (from 1), ``train_loss``, ``val_loss`` (None without
        validation samples) and, after an evaluation, COCO's scores such as ``AP``."""

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        """Predictions were drawn beside annotations: (H, W, 3) uint8 BGR; ``name`` is unique, such as epoch_0001."""

    def on_end(self) -> None:
        """The run has ended or was stopped, also by an error. Called if ``on_start`` returned."""


def callbacks_of_run(settings: LogConfig) -> list[TrainingCallback]:
    """The logs of a run besides its text log: those whose packages are there, and those that ``log.callbacks`` names.

    A name stands for an object, or for a class or function that makes one from nothing. ``ConfigError`` if it cannot be
    imported, or stands for something else.
    """
    logs: list[TrainingCallback] = [RunFiles(), DrawingFiles()]
    if settings.tensorboard:
        try:
            importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            if settings.tensorboard is True:
                _log.info(
                    "TensorBoard is not installed, so no events are written; pip install 'simplepose[tensorboard]'"
                )
        else:
            logs.append(TensorBoard())
    if has_matplotlib():
        logs.append(Curves())
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


@contextlib.contextmanager
def text_log() -> Iterator[Callable[[Path], None]]:
    """Keeps all messages of the package within this context; the function that it gives writes them to ``log.txt``.

    It writes those so far and all later ones into a folder, and an error that ends the context, which the caller
    reports. The handlers that others have installed get the messages that they would get without it.
    """
    messages = logging.handlers.MemoryHandler(0)  # it remembers all messages until it has a target
    messages.setLevel(logging.INFO)
    level, shown_level = _package_logger.level, _package_logger.getEffectiveLevel()
    others = [*_package_logger.handlers, *logging.getLogger().handlers]
    files: list[logging.FileHandler] = []

    def is_shown(record: logging.LogRecord) -> bool:
        """Whether a record would be logged without this context."""
        return record.levelno >= shown_level or record.name.partition(".")[0] != _package_logger.name

    def open_file(folder: Path) -> None:
        file = logging.FileHandler(folder / TEXT_LOG, encoding="utf-8")
        file.setFormatter(MessageFormatter("%(asctime)s  %(mark)s%(message)s", "%Y-%m-%d %H:%M:%S"))
        # By default a full disk prints a traceback for every message. The other logs warn of it.
        file.handleError = lambda record: None  # type: ignore[method-assign]
        messages.setTarget(file)
        messages.flush()
        files.append(file)

    for handler in others:
        handler.addFilter(is_shown)
    _package_logger.setLevel(min(logging.INFO, shown_level))
    _package_logger.addHandler(messages)
    try:
        yield open_file
    except Exception as error:
        text = to_single_line(str(error) if isinstance(error, PosenetError) else repr(error))
        for file in files:
            file.handle(logging.LogRecord(_log.name, logging.ERROR, "", 0, text, None, None))
        raise
    finally:
        _package_logger.removeHandler(messages)
        _package_logger.setLevel(level)
        for handler in others:
            handler.removeFilter(is_shown)
        messages.close()
        for file in files:
            with contextlib.suppress(OSError):  # of a full disk
                file.close()


class MeasurementLog(TrainingCallback):
    """A log that writes all measurements in the same way, of the kinds "train", "skip" and "epoch"."""

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self.write("train", step, values)

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        self.write("skip", step, values)

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        self.write("epoch", step, values)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError


class RunFiles(MeasurementLog):
    """Writes ``settings.toml``, an experiment, and one line of ``log.jsonl`` for every measurement.

    Numbers that are not finite become null.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        start = "# All settings of a run; to compare it with another one: posenet config FOLDER OTHER_FOLDER\n\n"
        write_atomically(folder / SETTINGS_FILE, (start + config_to_toml(config)).encode("utf-8", "surrogateescape"))
        self.file = open(folder / LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115

    def on_end(self) -> None:
        self.file.close()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        self.file.write(json.dumps(_without_nan(line), allow_nan=False) + "\n")
        self.file.flush()


def _without_nan(value: Any) -> Any:
    """The value with None in place of every number that is not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class DrawingFiles(TrainingCallback):
    """Writes every drawing as ``pictures/NAME.jpg``. Apart from ``RunFiles``, whose own failure a run says, too."""

    def on_start(self, config: Config, folder: Path) -> None:
        self.folder = folder / DRAWINGS_FOLDER

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        write_image(self.folder / f"{name}.jpg", image)


class TensorBoard(MeasurementLog):
    """Writes all numbers as ``train/NAME``, ``skip/NAME`` and ``epoch/NAME``, and the drawings."""

    def on_start(self, config: Config, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        self.writer.add_image("predictions", image[..., ::-1], step, dataformats="HWC")

    def on_end(self) -> None:
        self.writer.close()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, step)


class Curves(TrainingCallback):
    """Draws ``curves.png`` from ``log.jsonl`` after every epoch."""

    def on_start(self, config: Config, folder: Path) -> None:
        self.folder = folder

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        write_curves(self.folder)
