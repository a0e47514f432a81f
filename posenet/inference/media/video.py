"""Reading and writing videos, and reading cameras, with OpenCV."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from posenet.errors import ConfigError, DataError

VIDEO_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4 .mpeg .mpg .webm .wmv".split())
"""Files with these suffixes are read as videos."""
WRITABLE_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Formats that are also written: these containers support ``DEFAULT_CODEC``."""
DEFAULT_CODEC = "mp4v"
"""MPEG-4, which every OpenCV with FFmpeg can write; only some can write H.264."""
DEFAULT_FRAME_RATE = 25.0
"""Frames per second if a file or a camera states no plausible rate."""
MIN_FRAME_RATE = 1.0
MAX_FRAME_RATE = 480.0
"""A higher rate is implausible; some files state the ticks of a clock instead."""
MAX_MISSING_SHARE = 0.05
"""A video ends early if it lacks more than this share of its frames; frame counts in headers are inexact."""
MAX_UNREADABLE_IN_A_ROW = 100
"""Number of frames in a row that cannot be decoded after which reading ends."""


class VideoFrame(NamedTuple):
    """A frame of a video or a camera."""

    number: int
    """Counts from 0."""
    seconds: float
    """Time since the first frame."""
    image: np.ndarray
    """(H, W, 3) BGR uint8."""


class VideoFile:
    """A video that is read once, frame by frame, and rotated according to its metadata.

    ``rate`` is in frames per second. ``frame_count`` is the number of frames that the file states; 0 if it states none.

    Raises:
        DataError: the file does not exist, or OpenCV cannot read it.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"cannot read {path}: no such file")
        self.path = path
        with _silence_opencv():
            self._capture = cv2.VideoCapture(str(path))
        if not self._capture.isOpened():
            raise DataError(f"{path} is not a video that OpenCV can read; convert it to MP4 (H.264)")
        self.rate = _plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))
        self.frame_count = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def close(self) -> None:
        self._capture.release()

    def __iter__(self) -> Iterator[VideoFrame | DataError]:
        """Yield the remaining frames, an error for each damaged frame between them, and one if the video ends early."""
        number = 0
        unreadable = 0  # frames since the last intact one
        seconds = 0.0
        while unreadable < MAX_UNREADABLE_IN_A_ROW:
            success, image = self._capture.read()
            if success:
                for damaged in range(number - unreadable, number):
                    yield DataError(f"frame {damaged} of {self.path} cannot be decoded")
                unreadable = 0
                seconds = self._frame_time(number, seconds)
                yield VideoFrame(number, seconds, image)
            elif number >= self.frame_count:
                break
            else:
                unreadable += 1
            number += 1
        read = number - unreadable
        if read == 0 or self.frame_count - read > max(1, MAX_MISSING_SHARE * self.frame_count):
            yield DataError(f"{self.path} ends early: it has {read} of {self.frame_count} frames")

    def _frame_time(self, number: int, previous: float) -> float:
        """The time that the file states for the last frame, or the time by frame number if it did not increase."""
        stated = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        return stated if number == 0 or stated > previous else number / self.rate


class Camera:
    """A camera; ``DataError`` if it cannot be opened. ``rate`` is the frames per second that it states.

    Iterating over it yields the newest image each time. Images that arrive in between are dropped.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        with _silence_opencv():
            self._capture = cv2.VideoCapture(index)
        if not self._capture.isOpened():
            raise DataError(f"camera {index} cannot be opened; connect it, and close other programs that use it")
        self.rate = _plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))
        self._newest: VideoFrame | None = None
        self._changed = threading.Condition()  # guards _newest and _open
        self._open = True
        self._thread = threading.Thread(target=self._read_images, daemon=True)
        self._thread.start()

    def _read_images(self) -> None:
        """Update ``_newest`` until the camera is closed or fails; runs on a separate thread."""
        started = time.monotonic()
        number = 0
        try:
            while self._open:
                success, image = self._capture.read()
                if not success:
                    break
                with self._changed:
                    self._newest = VideoFrame(number, time.monotonic() - started, image)
                    self._changed.notify()
                number += 1
        finally:
            with self._changed:
                self._open = False
                self._changed.notify()

    def close(self) -> None:
        self._open = False
        self._thread.join()
        self._capture.release()

    def __iter__(self) -> Iterator[VideoFrame | DataError]:
        """Yield the newest image each time, until the camera is closed or fails; then an error."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or not self._open)
                frame = self._newest
                self._newest = None
            if frame is None:
                yield DataError(f"camera {self.index} delivers no more images")
                return
            yield frame


class VideoWriter:
    """Writes a video under a temporary name and renames it when it is closed, so that a video is always complete.

    Video codecs need even sides: an odd side is extended by one pixel.

    Args:
        path: its suffix, one of ``WRITABLE_SUFFIXES``, determines the format.
        rate: frames per second.
        size: (height, width) of the frames.
        codec: four letters.

    Raises:
        ConfigError: this OpenCV cannot write the codec in this format and size.
    """

    def __init__(self, path: Path, rate: float, size: tuple[int, int], codec: str = DEFAULT_CODEC) -> None:
        self.path = path
        self.rate = rate
        self.size = size
        self.frame_count = 0
        self._padding = size[0] % 2, size[1] % 2
        height = size[0] + self._padding[0]
        width = size[1] + self._padding[1]
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
        with _silence_opencv():
            fourcc = cv2.VideoWriter.fourcc(*codec) if len(codec) == 4 else 0
            self._writer = cv2.VideoWriter(str(self._temporary), fourcc, rate, (width, height))
        if not self._writer.isOpened():
            self._temporary.unlink(missing_ok=True)
            raise ConfigError(
                f"this OpenCV cannot write {path} with codec {codec!r} at {width} x {height}; "
                f"leave out --codec, or name another, for example {DEFAULT_CODEC} or MJPG"
            )

    def write(self, image: np.ndarray) -> None:
        """Append a (H, W, 3) BGR uint8 frame; a frame of another size is resized."""
        height, width = self.size
        if image.shape[:2] != self.size:
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        if any(self._padding):
            below, right = self._padding
            image = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_REPLICATE)
        self._writer.write(image)
        self.frame_count += 1

    def write_until(self, image: np.ndarray, seconds: float) -> None:
        """Repeat a frame until the video is ``seconds`` long, so that frames at irregular times play at their speed."""
        for _ in range(max(1, round(seconds * self.rate) - self.frame_count)):
            self.write(image)

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._writer.release()
        os.replace(self._temporary, self.path)


@contextlib.contextmanager
def _silence_opencv() -> Iterator[None]:
    """Keep OpenCV and FFmpeg from printing on standard error; our error messages are enough."""
    # FFmpeg reads its level once, when it is first used.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)


def _plausible_rate(rate: float) -> float:
    """A stated frame rate, or the default if it is implausible or not a number."""
    return rate if MIN_FRAME_RATE <= rate <= MAX_FRAME_RATE else DEFAULT_FRAME_RATE
