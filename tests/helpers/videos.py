"""Small videos for tests, and a camera and a window that need no hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from posenet.errors import DataError
from posenet.inference.media.sources import Frame
from posenet.inference.media.video import DEFAULT_CODEC, VideoFile, VideoFrame, VideoWriter
from posenet.inference.person import Person

GREY = np.full((48, 64, 3), 90, np.uint8)
"""An image without people."""


def write_video(
    path: Path, count: int = 12, size: tuple[int, int] = (48, 64), rate: float = 10.0, codec: str = DEFAULT_CODEC
) -> Path:
    """Write grey frames that grow lighter, with noise, so that every frame takes some bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = VideoWriter(path, rate, size, codec)
    noise = np.random.default_rng(0)
    for i in range(count):
        writer.write(np.clip(noise.integers(0, 30, (*size, 3)) + 15 * i, 0, 255).astype(np.uint8))
    writer.close()
    return path


def read_video(path: Path) -> list[VideoFrame | DataError]:
    reader = VideoFile(path)
    try:
        return list(reader)
    finally:
        reader.close()


class FakeCamera:
    """Stands in for ``Camera``: delivers the images of ``image_at(number)``."""

    rate = 10.0
    count = 2

    def __init__(self, index: int) -> None: ...

    @staticmethod
    def image_at(number: int) -> np.ndarray:
        return GREY

    def __iter__(self) -> Iterator[VideoFrame]:
        return (VideoFrame(number, number / 5, self.image_at(number)) for number in range(self.count))

    def close(self) -> None: ...


class FakeWindow:
    """Stands in for ``Window`` and shows nothing."""

    closed = False

    def __init__(self, stop_requested: Callable[[], bool]) -> None: ...

    @staticmethod
    def require_display() -> None: ...

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None: ...

    def close(self) -> None: ...
