"""Videos that are made of still images: numbered image files, and files with several images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.images import read_image, to_bgr
from posenet.inference.media.video import DEFAULT_FRAME_RATE, VideoReader, silence_opencv

MULTI_IMAGE_SUFFIXES = frozenset([".tif", ".tiff", ".webp"])
"""Formats that may hold several images and that no video library reads completely."""
IMAGES_AT_A_TIME = 16
"""OpenCV decodes an animation from its start for every request, so several images are requested at a time."""

_NUMBER_FIELD = re.compile(r"%(0?\d*)d")


def is_numbered_pattern(path: Path) -> bool:
    """Whether a path such as ``frame_%04d.png`` stands for numbered files."""
    return len(_NUMBER_FIELD.findall(path.name)) == 1 and not path.exists()


def stem_of_pattern(pattern: Path) -> str:
    """The part of the names that all numbered files have: ``frame`` for ``frame_%04d.png``."""
    return _NUMBER_FIELD.sub("", pattern.stem).strip("-_. ") or "images"


def has_several_images(path: Path) -> bool:
    """Whether a file is an animated GIF or WebP file or has several pages."""
    if path.suffix.lower() not in {".gif", *MULTI_IMAGE_SUFFIXES} or not path.is_file():
        return False
    with silence_opencv():
        return cv2.imcount(str(path)) > 1


def numbered_files(pattern: Path) -> list[Path]:
    """The files that a pattern such as ``frame_%04d.png`` stands for, in the order of their numbers.

    Raises:
        DataError: there are none.
    """
    before, _, after = _NUMBER_FIELD.split(pattern.name)
    files: dict[int, Path] = {}
    for path in pattern.parent.iterdir() if pattern.parent.is_dir() else ():
        match = re.fullmatch(re.escape(before) + r"(\d+)" + re.escape(after), path.name)
        if match and path.name == pattern.name % int(match[1]):
            files[int(match[1])] = path
    if not files:
        raise DataError(f"no file matches {pattern} (%d stands for a number, %04d for one of four digits)")
    return [path for _, path in sorted(files.items())]


class NumberedImages(VideoReader):
    """Image files such as ``frame_%04d.png``, as a video.

    Raises:
        DataError: there are no such files.
    """

    def __init__(self, pattern: Path) -> None:
        self.name = str(pattern)
        self._files = numbered_files(pattern)
        self.frame_count = len(self._files)
        self._current: np.ndarray

    def _decode(self) -> Iterator[float | None]:
        for number, path in enumerate(self._files):
            try:
                self._current = read_image(path)
            except DataError:
                yield None
            else:
                yield number / DEFAULT_FRAME_RATE

    def _image(self) -> np.ndarray:
        return self._current

    def close(self) -> None: ...


class MultiImageFile(VideoReader):
    """An animated WebP file, or a TIFF file with several pages."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        with silence_opencv():
            self.frame_count = cv2.imcount(str(path))
        self._is_tiff = path.suffix.lower() != ".webp"
        self._current: np.ndarray

    def _decode(self) -> Iterator[float | None]:
        seconds = 0.0
        for start in range(0, self.frame_count, IMAGES_AT_A_TIME):
            images, durations = self._read_images(start)
            for image, duration in zip(images, durations):
                self._current = to_bgr(image)
                yield seconds
                seconds += duration

    def _read_images(self, start: int) -> tuple[Sequence[np.ndarray], Sequence[float]]:
        """Up to ``IMAGES_AT_A_TIME`` images, and how long each is shown in seconds."""
        with silence_opencv():
            if self._is_tiff:
                count = min(IMAGES_AT_A_TIME, self.frame_count - start)
                _, images = cv2.imreadmulti(str(self._path), start, count, flags=cv2.IMREAD_COLOR)
                return images, [1 / self.rate] * len(images)
            _, animation = cv2.imreadanimation(str(self._path), start, IMAGES_AT_A_TIME)
        return animation.frames, [float(milliseconds) / 1000 for milliseconds in animation.durations]

    def _why_incomplete(self, frames_read: int) -> str:
        return f"it has {frames_read} of {self.frame_count} images" if frames_read < self.frame_count else ""

    def _image(self) -> np.ndarray:
        return self._current

    def close(self) -> None: ...
