"""Videos and cameras through OpenCV, which works everywhere; PyAV reads more codecs and writes better files."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.inference.media.video import (
    MIN_MISSING_FRAMES,
    VideoReader,
    VideoWriter,
    is_cut_off,
    plausible_rate,
    silence_opencv,
)

DEFAULT_CODEC = "mp4v"
"""MPEG-4, which every OpenCV with FFmpeg can write; only some can write H.264."""
COUNTED_SUFFIXES = frozenset(".3g2 .3gp .avi .m4v .mov .mp4".split())
"""Formats that state the number of frames. For others OpenCV estimates it from the length, which may be the sound's."""
MAX_GAP = 60.0
"""Longest time in seconds for which an image is repeated; a longer one is an error in the times of the video."""


class OpenCVVideo(VideoReader):
    """A video file, a stream or a camera.

    Args:
        location: a path, a URL, or the number of a camera.
        name: for messages.

    Raises:
        DataError: OpenCV cannot open it.
    """

    def __init__(self, location: Path | str | int, name: str) -> None:
        self.name = name
        self._is_counted = isinstance(location, Path) and location.suffix.lower() in COUNTED_SUFFIXES
        if isinstance(location, Path):
            # FFmpeg takes a relative path with a colon for a URL.
            location = str(location.absolute())
        with silence_opencv():
            self._capture = cv2.VideoCapture(location)
        if not self._capture.isOpened():
            raise DataError(f"{name} cannot be opened by OpenCV; {_REMEDY}")
        self.rate = plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))
        self.frame_count = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        aspect = self._capture.get(cv2.CAP_PROP_SAR_NUM), self._capture.get(cv2.CAP_PROP_SAR_DEN)
        if min(aspect) > 0:
            is_rotated = self._capture.get(cv2.CAP_PROP_ORIENTATION_META) in (90, 270)
            self.aspect = aspect[1] / aspect[0] if is_rotated else aspect[0] / aspect[1]

    def _decode(self) -> Iterator[float | None]:
        number = 0
        first_time: float | None = None
        while True:
            if self._capture.grab():
                time = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
                if first_time is None:
                    first_time = time
                yield time - first_time
            elif number < self.frame_count:
                yield None
            else:
                return
            number += 1

    def _image(self) -> np.ndarray:
        return self._capture.retrieve()[1]

    def _why_incomplete(self, frames_read: int) -> str:
        if self._is_counted and is_cut_off(frames_read, self.frame_count, MIN_MISSING_FRAMES):
            return f"it has {frames_read} of {self.frame_count} frames"
        return ""

    def _why_undecodable(self) -> str:
        code = int(self._capture.get(cv2.CAP_PROP_FOURCC)) & 0xFFFFFFFF
        codec = code.to_bytes(4, "little").decode("latin-1").strip()
        return f"is damaged, or its codec ({codec}) is unknown to this OpenCV; {_REMEDY}"

    def close(self) -> None:
        self._capture.release()


class OpenCVWriter(VideoWriter):
    """Writes a video at a constant rate and without sound, which is all that OpenCV can write.

    Images are repeated or left out so that the video plays at its true speed, and resized so that pixels are square.

    Args:
        path: its suffix, one of ``WRITABLE_SUFFIXES``, gives the format.
        size: (height, width) of the images.
        rate: frames per second.
        aspect: width of a pixel divided by its height.
        codec: four letters.

    Raises:
        ConfigError: this OpenCV cannot write the codec in this format and size.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: float, aspect: float, codec: str) -> None:
        super().__init__((size[0], max(1, round(size[1] * aspect))))
        self._path = path
        self._rate = rate
        self._frame_count = 0
        self._start = math.nan
        self._last = np.empty(0, np.uint8)  # there is none to repeat before the first image
        height, width = self._encoded_size
        _check_space(path)
        with silence_opencv():
            fourcc = cv2.VideoWriter.fourcc(*codec) if len(codec) == 4 else 0
            self._writer = cv2.VideoWriter(str(path.absolute()), fourcc, rate, (width, height))
        if not self._writer.isOpened():
            raise ConfigError(
                f"this OpenCV cannot write {path.suffix} with codec {codec!r} at {width} x {height}; "
                f"leave out --codec, or name another, for example {DEFAULT_CODEC} or MJPG"
            )

    def write(self, image: np.ndarray, seconds: float) -> None:
        if math.isnan(self._start):
            self._start = seconds
        missing = round((seconds - self._start) * self._rate) - self._frame_count
        if missing < 0:
            return
        if missing > MAX_GAP * self._rate:
            self._start += missing / self._rate
            missing = 0
        with silence_opencv():
            for _ in range(missing):
                self._writer.write(self._last)
            self._last = self._fit(image)
            self._writer.write(self._last)
        self._frame_count += missing + 1

    def close(self) -> None:
        # OpenCV does not report failed writes.
        with silence_opencv():
            self._writer.release()
        _check_space(self._path)
        if not self._is_complete():
            raise OSError(errno.ENOSPC, "the video could not be written completely; is the disk full?", str(self._path))

    def _is_complete(self) -> bool:
        """Whether the file has all frames, and the last can be read."""
        with silence_opencv():
            capture = cv2.VideoCapture(str(self._path.absolute()))
        written = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        capture.set(cv2.CAP_PROP_POS_FRAMES, self._frame_count - 1)
        has_last = capture.grab()
        capture.release()
        return has_last and abs(written - self._frame_count) <= 1


def _check_space(path: Path) -> None:
    """Check that a file can grow.

    Raises:
        OSError: the disk is full.
    """
    with open(path, "ab") as file:
        size = file.tell()
        file.write(bytes(4096))
        file.truncate(size)


_REMEDY = "install PyAV (pip install 'posenet[video]'), or convert it to MP4 (H.264)"
