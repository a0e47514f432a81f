"""Videos that are made of still images: numbered image files, and files with several images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from posenet.errors import DataError
from posenet.images import read_image, to_bgr
from posenet.inference.media.reader import DEFAULT_FRAME_RATE, VideoReader, plausible_rate
from posenet.inference.media.sources import Source, numbered_files

_PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, TypeError)


class NumberedImages(VideoReader):
    """Image files such as ``frame_%04d.png``, as a video.

    Raises:
        DataError: there are no such files.
    """

    def __init__(self, source: Source, pattern: Path) -> None:
        self.source = source
        self._files = numbered_files(pattern)
        self._current = np.empty((0, 0, 3), np.uint8)

    def decode(self) -> Iterator[float | None]:
        for number, path in enumerate(self._files):
            try:
                self._current = read_image(path)
            except DataError:
                yield None
            else:
                yield number / DEFAULT_FRAME_RATE

    def image(self) -> np.ndarray:
        return self._current


class Animation(VideoReader):
    """An animated GIF or WebP file, or a TIFF file with several pages."""

    def __init__(self, source: Source, image: Image.Image) -> None:
        self.source = source
        self._image = image
        self._count: int = getattr(image, "n_frames", 1)
        self.rate = plausible_rate(1 / self._seconds_shown())

    @classmethod
    def open(cls, source: Source, path: Path) -> Animation | None:
        """Open a file; None if it has one image, or none that can be read.

        Raises:
            DataError: the first image can be read, but the list of the others is damaged.
        """
        try:
            image = Image.open(path)
        except _PILLOW_ERRORS:
            return None
        try:
            if getattr(image, "is_animated", False):
                return cls(source, image)
        except _PILLOW_ERRORS as error:
            image.close()
            raise DataError(f"{source.name} is damaged: {error}") from error
        image.close()
        return None

    def decode(self) -> Iterator[float | None]:
        seconds = 0.0
        for number in range(self._count):
            try:
                self._image.seek(number)
                self._image.load()
            except _PILLOW_ERRORS:
                yield None
                continue
            yield seconds
            seconds += self._seconds_shown()

    def _seconds_shown(self) -> float:
        """For how long the current image is shown; pages of a document follow each other at the default rate."""
        milliseconds = float(self._image.info.get("duration") or 0)
        return milliseconds / 1000 if milliseconds > 0 else 1 / DEFAULT_FRAME_RATE

    def image(self) -> np.ndarray:
        return to_bgr(self._image)

    def why_incomplete(self, frames_read: int) -> str:
        return f"it has {frames_read} of {self._count} images" if frames_read < self._count else ""

    def close(self) -> None:
        self._image.close()
