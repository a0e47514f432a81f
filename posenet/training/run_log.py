"""The log of a run: progress bar, text log, JSON lines, TensorBoard, curves and drawings."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posenet.files import write_atomically
from posenet.settings import LogConfig
from posenet.visualization.matplotlib_figure import MATPLOTLIB_MISSING, has_matplotlib
from posenet.visualization.training_curves import CURVES_FILE, LOG_FILE, write_curves

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EPOCH_LINE_SCORES = ("train_loss", "val_loss", "AP", "AR")
"""Scores in the text log's line of an epoch. ``log.jsonl`` has all scores."""
TEXT_LOG = "log.txt"
DRAWINGS_FOLDER = "pictures"

_log = logging.getLogger(__name__)
_package_logger = logging.getLogger("posenet")


class RunLog:
    """Writes ``log.txt``, ``log.jsonl``, ``curves.png`` and ``pictures/`` into the folder of a run.

    If it cannot write, as on a full disk, it warns once, and training continues.
    """

    def __init__(self, folder: Path, settings: LogConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._has_failed = False
        self._json_file = open(folder / LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115
        self._text_handler = _make_text_handler(folder / TEXT_LOG)
        _package_logger.addHandler(self._text_handler)
        _package_logger.setLevel(logging.INFO)
        self._tensorboard = _open_tensorboard(folder) if settings.tensorboard else None
        self._draws_curves = settings.curves and has_matplotlib()
        self._curves_are_current = True
        if settings.curves and not self._draws_curves:
            _log.info("No %s: %s", CURVES_FILE, MATPLOTLIB_MISSING)

    def replay(self, early_messages: logging.handlers.MemoryHandler) -> None:
        """Write the messages that were logged before the run's folder was known, and close their handler."""
        early_messages.setTarget(self._text_handler)
        early_messages.close()

    def close(self) -> None:
        if not self._curves_are_current:
            self._draw_curves()
        _package_logger.removeHandler(self._text_handler)
        for file in (self._text_handler, self._json_file, self._tensorboard):
            if file is not None:
                with self._warn_once_on_failure():
                    file.close()

    @contextlib.contextmanager
    def progress_bar(self, title: str, total: int, done: int = 0) -> Iterator[tqdm[Any]]:
        """A progress bar that log messages do not interrupt."""
        bar = tqdm(total=total, initial=done, desc=title, unit="step", leave=False, dynamic_ncols=True)
        with logging_redirect_tqdm(), bar:
            yield bar

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line of ``log.jsonl``, and the numbers in it to TensorBoard as ``kind/name``."""
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        _log.debug(kind, extra={"values": {"kind": kind, "step": step, **values}})
        with self._warn_once_on_failure():
            self._json_file.write(json.dumps(line, allow_nan=False) + "\n")
            self._json_file.flush()
        if self._tensorboard is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._tensorboard.add_scalar(f"{kind}/{name}", value, step)

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Log the end of an epoch: ``Epoch N  train_loss ...  val_loss ...``, and draw the curves."""
        scores = [f"{name} {values[name]:.4f}" for name in EPOCH_LINE_SCORES if values.get(name) is not None]
        _log.info("Epoch %d  %s", epoch, "  ".join(scores))
        self.record("epoch", step, {"epoch": epoch, **values})
        self._curves_are_current = False
        if values.get("val_loss") is not None or "AP" in values:
            self._draw_curves()

    def drawing(self, name: str, image: np.ndarray, step: int) -> None:
        """Save a (H, W, 3) BGR uint8 drawing as ``pictures/NAME.jpg``."""
        encoded, jpeg = cv2.imencode(".jpg", image)
        if encoded:
            with self._warn_once_on_failure():
                write_atomically(self.folder / DRAWINGS_FOLDER / f"{name}.jpg", jpeg.tobytes())
        if self._tensorboard is not None:
            self._tensorboard.add_image("predictions", image[..., ::-1], step, dataformats="HWC")

    def _draw_curves(self) -> None:
        self._curves_are_current = True
        if not self._draws_curves:
            return
        try:
            write_curves(self.folder)
        except Exception as error:  # matplotlib raises errors of any kind, and none of them should end a run
            _log.warning("%s was not drawn: %s", CURVES_FILE, error)

    @contextlib.contextmanager
    def _warn_once_on_failure(self) -> Iterator[None]:
        """Turn an error of the file system into one warning per run."""
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                reason = error.strerror or error
                _log.warning("WARNING: cannot log into %s (%s); training continues", self.folder, reason)
            self._has_failed = True


class SilentLog:
    """A ``RunLog`` that does nothing, for all ranks except rank 0."""

    def replay(self, early_messages: logging.handlers.MemoryHandler) -> None:
        early_messages.setTarget(logging.NullHandler())
        early_messages.close()

    def close(self) -> None: ...

    @contextlib.contextmanager
    def progress_bar(self, title: str, total: int, done: int = 0) -> Iterator[tqdm[Any]]:
        yield tqdm(disable=True)

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None: ...

    def drawing(self, name: str, image: np.ndarray, step: int) -> None: ...


def _make_text_handler(path: Path) -> logging.FileHandler:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%Y-%m-%d %H:%M:%S"))
    # By default a full disk prints a traceback for every message. ``RunLog`` warns once instead.
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
