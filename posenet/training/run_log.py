"""The log of a run: progress bar, text log, JSON lines, TensorBoard, curves and drawings."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from tqdm import tqdm

from posenet.files import write_atomically
from posenet.progress import progress_bar
from posenet.settings import Config
from posenet.training.callbacks import TrainingCallback
from posenet.visualization.curves import CURVES_FILE, LOG_FILE, MATPLOTLIB_MISSING, has_matplotlib, write_curves

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EPOCH_LINE_SCORES = ("train_loss", "val_loss", "AP", "AR")
"""Scores in the text log's line of an epoch. ``log.jsonl`` has all scores."""
TEXT_LOG = "log.txt"
DRAWINGS_FOLDER = "pictures"

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


class RunLog:
    """Passes the measurements of a run to its logs and to the callbacks of the user, and shows progress bars.

    Args:
        folder: folder of the run, which is created; the settings ``log`` define which logs are written there.
        callbacks: called after the logs.
        progress: whether to show progress bars.
    """

    def __init__(
        self, folder: Path, config: Config, callbacks: Sequence[TrainingCallback] = (), progress: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.shows_progress = progress
        self._config = config
        self._folder = folder
        errors = WriteErrors(folder)
        self._text_log = TextLog(errors)
        self._logs: list[TrainingCallback] = [self._text_log, JsonLines(errors), DrawingFiles(errors)]
        if config.log.tensorboard:
            self._logs.append(TensorBoard(errors))
        if config.log.curves:
            self._logs.append(Curves())
        self._callbacks = list(callbacks)
        self._started = contextlib.ExitStack()

    def start(self, early_messages: logging.handlers.MemoryHandler | None = None) -> None:
        """Start the logs and the callbacks; ``close`` ends those that were started.

        ``early_messages`` are those that were logged before the run's folder was known; the text log receives them.
        """
        for log in self._logs:
            log.on_start(self._config, self._folder)
            self._started.callback(log.on_end)
            if log is self._text_log and early_messages is not None:
                self._text_log.replay(early_messages)
        for callback in self._callbacks:
            callback.on_start(self._config, self._folder)
            self._started.callback(self._call, callback, callback.on_end)

    def close(self) -> None:
        """End the callbacks and the logs, the text log last, because it receives the messages of the others."""
        self._started.close()

    def progress_bar(self, title: str, total: int, done: int = 0, following: int = 0) -> tqdm[Any]:
        """A progress bar over the steps of an epoch, which ``following`` steps of later epochs follow."""
        return progress_bar(
            title=title,
            total=total,
            unit="step",
            done=done,
            following=following,
            leave=False,
            disable=not self.shows_progress,
        )

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the measurements since the last call."""
        self._call_all("on_step", step, values)

    def skip(self, step: int, values: Mapping[str, Any]) -> None:
        """Log a skipped step."""
        self._call_all("on_skip", step, values)

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Log the scores at the end of an epoch."""
        self._call_all("on_epoch", step, {"epoch": epoch, **values})

    def drawing(self, name: str, image: np.ndarray, step: int) -> None:
        """Log a (H, W, 3) BGR uint8 drawing."""
        self._call_all("on_drawing", step, name, image)

    def _call_all(self, method: str, *args: Any) -> None:
        for log in self._logs:
            getattr(log, method)(*args)
        for callback in list(self._callbacks):
            self._call(callback, getattr(callback, method), *args)

    def _call(self, callback: TrainingCallback, method: Callable[..., None], *args: Any) -> None:
        """Call a method of a user's callback. After an exception, the callback is not called any more."""
        if callback not in self._callbacks:
            return
        try:
            method(*args)
        except Exception as error:  # the code of a user can raise anything
            self._callbacks.remove(callback)
            reason = f"{type(error).__name__}: {error}"
            name = type(callback).__name__
            _log.warning("WARNING: the callback %s failed and is not called any more: %s", name, reason)


class SilentLog:
    """A ``RunLog`` that does nothing, for all ranks except rank 0."""

    shows_progress = False

    def start(self, early_messages: logging.handlers.MemoryHandler | None = None) -> None:
        if early_messages is not None:
            early_messages.setTarget(logging.NullHandler())
            early_messages.close()

    def close(self) -> None: ...

    def progress_bar(self, title: str, total: int, done: int = 0, following: int = 0) -> tqdm[Any]:
        return progress_bar(disable=True)

    def step(self, step: int, values: Mapping[str, Any]) -> None: ...

    def skip(self, step: int, values: Mapping[str, Any]) -> None: ...

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None: ...

    def drawing(self, name: str, image: np.ndarray, step: int) -> None: ...


class WriteErrors:
    """Turns errors of the file system, as on a full disk, into one warning per run; training continues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_warned = False

    @contextlib.contextmanager
    def warn_once(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_warned:
                reason = error.strerror or error
                _log.warning("WARNING: cannot log into %s (%s); training continues", self._folder, reason)
            self._has_warned = True


class TextLog(TrainingCallback):
    """Writes all messages of the package to ``log.txt``, among them one line for every epoch."""

    def __init__(self, errors: WriteErrors) -> None:
        self.errors = errors

    def on_start(self, config: Config, folder: Path) -> None:
        self.handler = _make_text_handler(folder / TEXT_LOG)
        self._previous_level = _package_logger.level
        _package_logger.addHandler(self.handler)
        _package_logger.setLevel(logging.INFO)

    def replay(self, early_messages: logging.handlers.MemoryHandler) -> None:
        """Write the messages that were logged before the run's folder was known, and close their handler."""
        early_messages.setTarget(self.handler)
        early_messages.close()

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        scores = [f"{name} {values[name]:.4f}" for name in EPOCH_LINE_SCORES if values.get(name) is not None]
        _log.info("Epoch %d  %s", values["epoch"], "  ".join(scores))

    def on_end(self) -> None:
        _package_logger.removeHandler(self.handler)
        _package_logger.setLevel(self._previous_level)
        with self.errors.warn_once():
            self.handler.close()


class MeasurementLog(TrainingCallback):
    """A log that writes all measurements in the same way."""

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self._write("train", step, values)

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        self._write("skip", step, values)

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        self._write("epoch", step, values)

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write measurements of the kind "train", "skip" or "epoch"."""
        raise NotImplementedError


class JsonLines(MeasurementLog):
    """Writes one line of ``log.jsonl`` for every measurement, and a message of level DEBUG with the same values."""

    def __init__(self, errors: WriteErrors) -> None:
        self.errors = errors

    def on_start(self, config: Config, folder: Path) -> None:
        self.file = open(folder / LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115

    def on_end(self) -> None:
        with self.errors.warn_once():
            self.file.close()

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        _log.debug(kind, extra={"values": {"kind": kind, "step": step, **values}})
        with self.errors.warn_once():
            self.file.write(json.dumps(line, allow_nan=False) + "\n")
            self.file.flush()


class DrawingFiles(TrainingCallback):
    """Writes every drawing as ``pictures/NAME.jpg``."""

    def __init__(self, errors: WriteErrors) -> None:
        self.errors = errors

    def on_start(self, config: Config, folder: Path) -> None:
        self.folder = folder / DRAWINGS_FOLDER

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        encoded, jpeg = cv2.imencode(".jpg", image)
        if encoded:
            with self.errors.warn_once():
                write_atomically(self.folder / f"{name}.jpg", jpeg.tobytes())


class TensorBoard(MeasurementLog):
    """Writes all numbers as ``train/NAME``, ``skip/NAME`` and ``epoch/NAME``, and the drawings, if it is installed."""

    def __init__(self, errors: WriteErrors) -> None:
        self.errors = errors

    def on_start(self, config: Config, folder: Path) -> None:
        self.writer = _open_tensorboard(folder)

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        if self.writer is not None:
            self.writer.add_image("predictions", image[..., ::-1], step, dataformats="HWC")

    def on_end(self) -> None:
        if self.writer is not None:
            with self.errors.warn_once():
                self.writer.close()

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if self.writer is None:
            return
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, step)


class Curves(TrainingCallback):
    """Draws ``curves.png`` from ``log.jsonl`` after every validation and at the end, if matplotlib is installed."""

    def on_start(self, config: Config, folder: Path) -> None:
        self.folder = folder
        self._is_enabled = has_matplotlib()
        self._is_current = True
        if not self._is_enabled:
            _log.info("No %s: %s", CURVES_FILE, MATPLOTLIB_MISSING)

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        self._is_current = False
        if values.get("val_loss") is not None or "AP" in values:
            self._draw()

    def on_end(self) -> None:
        if not self._is_current:
            self._draw()

    def _draw(self) -> None:
        self._is_current = True
        if not self._is_enabled:
            return
        try:
            write_curves(self.folder)
        except Exception as error:  # matplotlib raises errors of any kind, and none of them should end a run
            _log.warning("%s was not drawn: %s", CURVES_FILE, error)


def _make_text_handler(path: Path) -> logging.FileHandler:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%Y-%m-%d %H:%M:%S"))
    # By default a full disk prints a traceback for every message. ``WriteErrors`` warns once instead.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    return handler


def _open_tensorboard(folder: Path) -> SummaryWriter | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.info(
            "TensorBoard is not installed, so no events are written; install it with pip install tensorboard, "
            "or turn this message off with log.tensorboard=false"
        )
        return None
    return SummaryWriter(str(folder / "tensorboard"))
