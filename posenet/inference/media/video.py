"""Videos in and out, and cameras, through OpenCV."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from posenet.errors import ConfigError, DataError

SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4 .mpeg .mpg .webm .wmv".split())
"""Files that are taken for videos."""
WRITTEN = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Those of them that are written, too: these containers hold ``CODEC``."""
CODEC = "mp4v"
"""MPEG-4, which every OpenCV with FFmpeg can write; H.264 only some can."""
USUAL_RATE = 25.0
RATES = 1.0, 480.0
"""Frames per second that can be believed; some files state a clock's ticks instead."""
ENDS_EARLY = 0.05
"""A video that lacks more than this share of its frames at the end was cut off; less is a rough count in its header."""
MOST_LOST = 100
"""Unreadable frames in a row after which a video is over."""

Shot = tuple[int, float, "np.ndarray | DataError"]
"""A frame's number from 0, its time in seconds, and the (H, W, 3) BGR uint8 image or why there is none."""


class VideoFile:
    """A video to read from its start to its end, frame by frame, turned as its rotation says.

    Attributes:
        rate: frames per second.
        count: how many frames the file says it has; 0 where it does not.

    Raises:
        DataError: a file that is not there, or no video that OpenCV can read.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"cannot read {path}: no such file")
        self.path = path
        with _quiet():
            self._capture = cv2.VideoCapture(str(path))
        if not self._capture.isOpened():
            raise DataError(f"{path} is not a video that OpenCV can read; convert it to MP4 (H.264)")
        self.rate = _sound(self._capture.get(cv2.CAP_PROP_FPS))
        self.count = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def close(self) -> None:
        self._capture.release()

    def __iter__(self) -> Iterator[Shot]:
        """The frames that are left; a damaged one that sound ones follow yields its error."""
        number, lost, last = 0, 0, 0.0
        while lost < MOST_LOST:
            ok, image = self._capture.read()
            if ok:
                yield from (
                    (n, n / self.rate, DataError(f"frame {n} of {self.path} cannot be decoded"))
                    for n in range(number - lost, number)
                )
                stamp = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
                # Time goes on, whatever the file says.
                last = stamp if stamp > last or number == 0 else number / self.rate
                lost = 0
                yield number, last, image
            elif number >= self.count:
                break
            else:
                lost += 1
            number += 1
        shown = number - lost
        if not shown or self.count - shown > max(1, ENDS_EARLY * self.count):
            yield shown, shown / self.rate, DataError(f"{self.path} ends early: it has {shown} of {self.count} frames")


class Camera:
    """A camera that shows what is before it now: frames that come while nobody asks are passed over.

    Attributes:
        rate: frames per second that the camera gives.

    Raises:
        DataError: no camera of that number.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        with _quiet():
            self._capture = cv2.VideoCapture(index)
        if not self._capture.isOpened():
            raise DataError(f"camera {index} cannot be opened; connect it, and end other programs that use it")
        self.rate = _sound(self._capture.get(cv2.CAP_PROP_FPS))
        self._newest: Shot | None = None
        self._news = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        started, number = time.monotonic(), 0
        try:
            while self._open:
                ok, image = self._capture.read()
                if not ok:
                    break
                with self._news:
                    self._newest = number, time.monotonic() - started, image
                    self._news.notify()
                number += 1
        finally:
            with self._news:
                self._open = False
                self._news.notify()

    def close(self) -> None:
        self._open = False
        self._thread.join()
        self._capture.release()

    def __iter__(self) -> Iterator[Shot]:
        """The newest frame whenever one is asked for, until the camera is closed or fails."""
        number, seconds = 0, 0.0
        while True:
            with self._news:
                self._news.wait_for(lambda: self._newest is not None or not self._open)
                shot, self._newest = self._newest, None
            if shot is None:
                yield number, seconds, DataError(f"camera {self.index} gives no more images")
                return
            number, seconds, _ = shot
            yield shot


class VideoWriter:
    """Writes a video beside its name and gives it that name when closed, so that it is always whole.

    Video codecs need even sides: an odd one is made longer by a pixel.

    Args:
        path: its suffix, one of ``WRITTEN``, says the format.
        size: (height, width) of the frames.
        codec: four letters.

    Raises:
        ConfigError: a codec that this OpenCV cannot write in this format and size.
    """

    def __init__(self, path: Path, rate: float, size: tuple[int, int], codec: str = CODEC) -> None:
        self.path, self.rate, self.size, self.frames = path, rate, tuple(size), 0
        self._pad = tuple(side % 2 for side in size)
        height, width = (side + odd for side, odd in zip(size, self._pad))
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
        with _quiet():
            fourcc = cv2.VideoWriter_fourcc(*codec) if len(codec) == 4 else 0
            self._writer = cv2.VideoWriter(str(self._temporary), fourcc, rate, (width, height))
        if not self._writer.isOpened():
            self._temporary.unlink(missing_ok=True)
            raise ConfigError(
                f"this OpenCV cannot write {path} with codec {codec!r} at {width} x {height}; "
                f"leave out --codec, or name another, for example {CODEC} or MJPG"
            )

    def write(self, image: np.ndarray) -> None:
        """Add a (H, W, 3) BGR uint8 frame; one of another size is resized."""
        if image.shape[:2] != self.size:
            image = cv2.resize(image, self.size[::-1], interpolation=cv2.INTER_AREA)
        if any(self._pad):
            image = cv2.copyMakeBorder(image, 0, self._pad[0], 0, self._pad[1], cv2.BORDER_REPLICATE)
        self._writer.write(image)
        self.frames += 1

    def write_until(self, image: np.ndarray, seconds: float) -> None:
        """Show an image until a time, so that what comes at any pace is played at its own."""
        for _ in range(max(1, round(seconds * self.rate) - self.frames)):
            self.write(image)

    def close(self) -> None:
        """End the file, so that players can read it."""
        self._writer.release()
        os.replace(self._temporary, self.path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """OpenCV and FFmpeg say nothing of their own on standard error: our messages tell what matters."""
    # FFmpeg's level is read when it is first used, and holds from then on.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)


def _sound(rate: float) -> float:
    return rate if RATES[0] <= rate <= RATES[1] else USUAL_RATE
