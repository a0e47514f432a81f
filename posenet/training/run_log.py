"""What a run tells: progress bar, text log, JSON lines, TensorBoard and images."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posenet.files import write_atomically
from posenet.visualization.matplotlib_figure import MISSING, can_draw
from posenet.visualization.training_curves import LOG, PICTURE, draw_curves

SHOWN = ("train_loss", "val_loss", "AP", "AR")
"""What an epoch's line shows; ``log.jsonl`` has it all."""

_log = logging.getLogger(__name__)
_package = logging.getLogger("posenet")


class RunLog:
    """Writes into the run's folder: ``log.txt`` to read, ``log.jsonl`` for programs, ``curves.png``, ``pictures/``.

    Args:
        folder: the run's folder; created.
        tensorboard: also write TensorBoard events, where TensorBoard is installed.
        curves: also draw the curves, where matplotlib is installed.
    """

    def __init__(self, folder: Path, tensorboard: bool = True, curves: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._failing = folder, False
        self._json = open(folder / LOG, "a", encoding="utf-8")
        self._text = logging.FileHandler(folder / "log.txt", encoding="utf-8")
        self._text.setLevel(logging.INFO)
        # What it would print where the disk is full is a traceback for every message; ``_spared`` says it once.
        self._text.handleError = lambda record: None
        self._text.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%Y-%m-%d %H:%M:%S"))
        _package.addHandler(self._text)
        _package.setLevel(logging.INFO)
        self._board = _board(folder) if tensorboard else None
        self._curves, self._drawn = curves and can_draw(), True
        if curves and not self._curves:
            _log.info("No %s: %s", PICTURE, MISSING)

    def take(self, early: logging.handlers.MemoryHandler) -> None:
        """Write the messages that came before the log was there; the handler keeps no more."""
        early.setTarget(self._text)
        early.close()

    def close(self) -> None:
        if not self._drawn:
            self._draw()
        _package.removeHandler(self._text)
        for file in filter(None, (self._text, self._json, self._board)):
            with self._spared():
                file.close()

    @contextlib.contextmanager
    def progress(self, title: str, total: int, done: int = 0) -> Iterator[tqdm]:
        """A progress bar that log messages do not tear apart."""
        with (
            logging_redirect_tqdm(),
            tqdm(total=total, initial=done, desc=title, unit="step", leave=False, dynamic_ncols=True) as bar,
        ):
            yield bar

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One JSON line, and the numbers among its values to TensorBoard as ``kind/name``."""
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        _log.debug(kind, extra={"values": {"kind": kind, "step": step, **values}})
        with self._spared():
            self._json.write(json.dumps(line, allow_nan=False) + "\n")
            self._json.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """After an epoch, the line people read: ``Epoch N  train_loss ...  val_loss ...``."""
        parts = [f"{name} {values[name]:.4f}" for name in SHOWN if values.get(name) is not None]
        _log.info("Epoch %d  %s", epoch, "  ".join(parts))
        self.record("epoch", step, {"epoch": epoch, **values})
        self._drawn = False
        if values.get("val_loss") is not None or "AP" in values:
            self._draw()

    def _draw(self) -> None:
        """Draw the curves anew; training goes on whatever comes of it."""
        self._drawn = True
        if self._curves:
            try:
                draw_curves(self.folder)
            except Exception as error:  # matplotlib's are of any kind, and none is worth a run
                _log.warning("%s was not drawn: %s", PICTURE, error)

    def picture(self, name: str, image: np.ndarray, step: int) -> None:
        """Save a (H, W, 3) BGR uint8 image as ``pictures/NAME.jpg``."""
        ok, jpeg = cv2.imencode(".jpg", image)
        if ok:
            with self._spared():
                write_atomically(self.folder / "pictures" / f"{name}.jpg", jpeg.tobytes())
        if self._board is not None:
            self._board.add_image("predictions", image[..., ::-1], step, dataformats="HWC")

    @contextlib.contextmanager
    def _spared(self) -> Iterator[None]:
        """What cannot be logged is lost, and said once; the run goes on."""
        try:
            yield
        except OSError as error:
            if not self._failing:
                _log.warning("WARNING: cannot log into %s (%s); the run goes on", self.folder, error.strerror or error)
            self._failing = True


class SilentLog:
    """A ``RunLog`` for processes that neither print nor write."""

    def take(self, early: logging.handlers.MemoryHandler) -> None:
        early.setTarget(logging.NullHandler())
        early.close()

    def close(self) -> None: ...

    @contextlib.contextmanager
    def progress(self, title: str, total: int, done: int = 0) -> Iterator[tqdm]:
        yield tqdm(disable=True)

    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...

    def epoch(self, epoch: int, step: int, values: Mapping[str, Any]) -> None: ...

    def picture(self, name: str, image: np.ndarray, step: int) -> None: ...


def _board(folder: Path) -> Any | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.info(
            "TensorBoard is not installed, so no events are written; pip install tensorboard adds it, "
            "log.tensorboard=false is silent"
        )
        return None
    return SummaryWriter(str(folder / "tensorboard"))
