"""What people are looked for in: images, videos and cameras, as one stream of frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from posenet.errors import DataError
from posenet.images import image_files as images
from posenet.images.image_files import find_images, read_images_ahead
from posenet.inference.media import video
from posenet.inference.media.video import Camera, VideoFile


@dataclass(frozen=True)
class Source:
    """One input.

    Attributes:
        name: the path as given; "camera N".
        path: of a file; None for a camera.
        camera: its number.
    """

    kind: Literal["image", "video", "camera"]
    name: str
    path: Path | None = None
    camera: int = 0

    @property
    def stem(self) -> str:
        """What files made from it are called."""
        return self.path.stem if self.path else f"camera-{self.camera}"


@dataclass(frozen=True)
class Frame:
    """An image, or one of a video or a camera.

    Attributes:
        image: (H, W, 3) BGR uint8, or why there is none.
        number: counts a source's frames from 0; None for an image.
        seconds: since the source's first frame.
        rate: frames per second of the source; 0 for an image.
    """

    source: Source
    image: np.ndarray | DataError
    number: int | None = None
    seconds: float = 0.0
    rate: float = 0.0


def find_sources(inputs: Sequence[str], listed: Iterable[str] = (), cameras: Sequence[int] = ()) -> list[Source]:
    """Files, folders, glob patterns and camera numbers as sources, each file once, in the order given.

    Args:
        inputs: a number that is no file's name is a camera; "-" stands for ``listed``.
        listed: paths, one each; one that does not exist is found out only when it is read.
        cameras: numbers of further cameras.

    Raises:
        DataError: an input that does not exist, a folder without images and videos, a pattern that fits no file.
    """
    found: dict[object, Source] = {}
    for item in inputs:
        if item == "-":
            sources = [_of_file(Path(line)) for line in map(str.strip, listed) if line]
        elif item.isascii() and item.isdecimal() and not Path(item).exists():
            sources = [_of_camera(int(item))]
        else:
            sources = [_of_file(path) for path in find_images([item], images.IMAGE_SUFFIXES | video.SUFFIXES)]
        for source in sources:
            found.setdefault(source.path.resolve() if source.path else source.name, source)
    for source in map(_of_camera, cameras):
        found.setdefault(source.name, source)
    return list(found.values())


def _of_file(path: Path) -> Source:
    return Source("video" if path.suffix.lower() in video.SUFFIXES else "image", str(path), path)


def _of_camera(index: int) -> Source:
    return Source("camera", f"camera {index}", camera=index)


def count_frames(sources: Iterable[Source]) -> int | None:
    """How many frames they have together; None where one of them cannot say."""
    total = 0
    for source in sources:
        if source.kind == "camera":
            return None
        if source.kind == "video":
            try:
                reader = VideoFile(source.path)
            except DataError:
                total += 1
                continue
            reader.close()
            if not reader.count:
                return None
            total += reader.count
        else:
            total += 1
    return total


def read_frames(sources: Iterable[Source]) -> Iterator[Frame]:
    """All frames, source after source; what cannot be read yields its error in the place of an image."""
    for kind, group in itertools.groupby(sources, lambda source: source.kind):
        if kind == "image":
            together = list(group)
            yield from map(Frame, together, read_images_ahead(source.path for source in together))
        else:
            for source in group:
                yield from _moving(source)


def _moving(source: Source) -> Iterator[Frame]:
    try:
        reader = VideoFile(source.path) if source.path else Camera(source.camera)
    except DataError as error:
        yield Frame(source, error)
        return
    try:
        for number, seconds, image in reader:
            yield Frame(source, image, number, seconds, reader.rate)
    finally:
        reader.close()
