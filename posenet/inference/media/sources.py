"""The inputs of prediction: images, videos and cameras, as one stream of frames."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, cast

import numpy as np

from posenet.errors import DataError
from posenet.images.image_files import IMAGE_SUFFIXES, find_images, read_images_ahead
from posenet.inference.media.video import VIDEO_SUFFIXES, Camera, VideoFile


@dataclass(frozen=True)
class FileSource:
    """An image file or a video file."""

    kind: Literal["image", "video"]
    path: Path

    @property
    def name(self) -> str:
        """The path, as the user wrote it."""
        return str(self.path)

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        return self.path.stem


@dataclass(frozen=True)
class CameraSource:
    """A camera."""

    kind: ClassVar[Literal["camera"]] = "camera"
    index: int

    @property
    def name(self) -> str:
        return f"camera {self.index}"

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        return f"camera-{self.index}"


Source = FileSource | CameraSource


@dataclass(frozen=True)
class Frame:
    """An image file, or one image of a video or a camera."""

    source: Source
    image: np.ndarray
    """(H, W, 3) BGR uint8."""
    number: int | None = None
    """Counts the frames of a source from 0; None for an image file."""
    seconds: float = 0.0
    """Time since the source's first frame."""
    rate: float = 0.0
    """Frames per second of the source; 0 for an image file."""


@dataclass(frozen=True)
class UnreadableFrame:
    """A frame that cannot be read, or a source that cannot be opened, and why."""

    source: Source
    error: DataError


def find_sources(inputs: Iterable[str], listed: Iterable[str] = (), cameras: Iterable[int] = ()) -> list[Source]:
    """Find the sources that files, folders, glob patterns and camera numbers name, each once, in the given order.

    Args:
        inputs: a number that is not the name of a file is a camera; "-" stands for ``listed``.
        listed: one path each. They are not checked before they are read.
        cameras: numbers of further cameras.

    Raises:
        DataError: an input does not exist, a folder has no images or videos, or a pattern has no match.
    """
    sources: dict[object, Source] = {}
    for source in _expand_inputs(inputs, listed):
        key = source.name if source.kind == "camera" else source.path.resolve()
        sources.setdefault(key, source)
    for index in cameras:
        camera = CameraSource(index)
        sources.setdefault(camera.name, camera)
    return list(sources.values())


def _expand_inputs(inputs: Iterable[str], listed: Iterable[str]) -> Iterator[Source]:
    for item in inputs:
        if item == "-":
            lines = (line.strip() for line in listed)
            yield from (_file_source(Path(line)) for line in lines if line)
        elif item.isascii() and item.isdecimal() and not Path(item).exists():
            yield CameraSource(int(item))
        else:
            for path in find_images([item], IMAGE_SUFFIXES | VIDEO_SUFFIXES):
                yield _file_source(path)


def _file_source(path: Path) -> FileSource:
    return FileSource("video" if path.suffix.lower() in VIDEO_SUFFIXES else "image", path)


def count_frames(sources: Iterable[Source]) -> int | None:
    """Total number of frames; None if it is unknown, as for cameras and for videos without a frame count."""
    total = 0
    for source in sources:
        if source.kind == "camera":
            return None
        count = 1 if source.kind == "image" else _count_video_frames(source.path)
        if count == 0:
            return None
        total += count
    return total


def _count_video_frames(path: Path) -> int:
    """The frame count in the file, or 0; 1 for an unreadable file, which yields one ``UnreadableFrame``."""
    try:
        video = VideoFile(path)
    except DataError:
        return 1
    video.close()
    return video.frame_count


def read_frames(sources: Iterable[Source]) -> Generator[Frame | UnreadableFrame, None, None]:
    """Yield the frames of all sources, one source after the other."""
    for kind, group in itertools.groupby(sources, lambda source: source.kind):
        if kind == "image":
            yield from _read_images(cast("list[FileSource]", list(group)))
        else:
            for source in group:
                yield from _read_video(source)


def _read_images(sources: Sequence[FileSource]) -> Iterator[Frame | UnreadableFrame]:
    """Read image files, the next ones on other threads."""
    images = read_images_ahead(source.path for source in sources)
    for source, image in zip(sources, images):
        yield UnreadableFrame(source, image) if isinstance(image, DataError) else Frame(source, image)


def _read_video(source: Source) -> Iterator[Frame | UnreadableFrame]:
    """The frames of a video or a camera."""
    try:
        reader = Camera(source.index) if source.kind == "camera" else VideoFile(source.path)
    except DataError as error:
        yield UnreadableFrame(source, error)
        return
    with contextlib.closing(reader):
        for item in reader:
            if isinstance(item, DataError):
                yield UnreadableFrame(source, item)
            else:
                yield Frame(source, item.image, item.number, item.seconds, reader.rate)
