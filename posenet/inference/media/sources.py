"""The inputs of prediction: images, videos, streams and cameras, as one stream of frames."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np

from posenet.devices.background import map_in_background
from posenet.downloading import download_image, without_credentials
from posenet.errors import DataError
from posenet.images import IMAGE_SUFFIXES, find_images, read_image
from posenet.inference.media.image_series import (
    MULTI_IMAGE_SUFFIXES,
    MultiImageFile,
    NumberedImages,
    has_several_images,
    is_numbered_pattern,
    numbered_files,
    stem_of_pattern,
)
from posenet.inference.media.live_video import LiveVideo
from posenet.inference.media.opencv_video import OpenCVVideo
from posenet.inference.media.video import ALL_FRAMES, VIDEO_SUFFIXES, FrameSelection, VideoReader
from posenet.inference.media.video_library import open_video

MIN_READ_AHEAD = 8
"""Number of image files that are read before they are requested."""
READ_THREADS = 4
"""Number of threads that read image files."""


@dataclass(frozen=True)
class FileSource:
    """An image file or a video file. A pattern of numbered images such as ``frame_%04d.png`` is a video."""

    kind: Literal["image", "video"]
    path: Path
    subfolder: Path = Path()
    """Where a recursive search found it, relative to the folder that was searched."""

    @property
    def name(self) -> str:
        """The path, as the user wrote it."""
        return str(self.path)

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        return stem_of_pattern(self.path) if is_numbered_pattern(self.path) else self.path.stem

    @property
    def suffix(self) -> str:
        return self.path.suffix


@dataclass(frozen=True)
class CameraSource:
    """A camera: its number, or its device file such as ``/dev/video0``."""

    kind: ClassVar[Literal["camera"]] = "camera"
    device: int | str

    @property
    def name(self) -> str:
        return f"camera {self.device}"

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        return f"camera-{str(self.device).rpartition('/')[2]}"

    @property
    def suffix(self) -> str:
        return ""


@dataclass(frozen=True)
class UrlSource:
    """An image, a video or a live stream at an address such as ``https://...`` or ``rtsp://...``."""

    kind: Literal["image", "video"]
    url: str

    @property
    def name(self) -> str:
        """The address, without a user name and a password."""
        return without_credentials(self.url)

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        address = urlsplit(self.url)
        return Path(address.path).stem or address.hostname or "stream"

    @property
    def suffix(self) -> str:
        return _url_suffix(self.url)


Source = FileSource | CameraSource | UrlSource


@dataclass(frozen=True)
class Frame:
    """An image file, or one image of a video, a stream or a camera."""

    source: Source
    image: np.ndarray
    """(H, W, 3) BGR uint8."""
    number: int | None = None
    """Counts the frames of a source from 0; None for an image file."""
    seconds: float = 0.0
    """Time since the source's first frame."""
    rate: float = 0.0
    """Frames per second that are read from the source; 0 for an image file."""
    aspect: float = 1.0
    """Width of a pixel divided by its height."""
    is_live: bool = False
    """Whether the source is a camera or a live stream, which does not wait for its reader."""


@dataclass(frozen=True)
class UnreadableFrame:
    """A frame that cannot be read, or a source that cannot be opened, and why."""

    source: Source
    error: DataError
    is_live: ClassVar[bool] = False


def find_sources(
    inputs: Iterable[str], listed: Iterable[str] = (), cameras: Iterable[int] = (), *, recursive: bool = False
) -> list[Source]:
    """Find the sources that files, folders, patterns, addresses and cameras name, each once, in the given order.

    Args:
        inputs: a number that is not the name of a file is a camera; "-" stands for ``listed``.
        listed: one path or address each. They are not checked before they are read.
        cameras: numbers of further cameras.
        recursive: search subfolders of folders too.

    Raises:
        DataError: an input does not exist, a folder has no images or videos, or a pattern has no match.
    """
    sources: dict[object, Source] = {}
    for source in _expand_inputs(inputs, listed, recursive):
        key = source.path.resolve() if isinstance(source, FileSource) else source
        sources.setdefault(key, source)
    for index in cameras:
        camera = CameraSource(index)
        sources.setdefault(camera, camera)
    return list(sources.values())


def _expand_inputs(inputs: Iterable[str], listed: Iterable[str], recursive: bool) -> Iterator[Source]:
    for item in inputs:
        path = Path(item)
        if item == "-":
            yield from (_named_source(entry) for entry in listed)
        elif item.isascii() and item.isdecimal() and not path.exists():
            yield CameraSource(int(item))
        elif _is_camera(path):
            yield CameraSource(item)
        elif is_url(item):
            yield _named_source(item)
        elif is_numbered_pattern(path):
            numbered_files(path)  # raises an error if there are none
            yield FileSource("video", path)
        else:
            for file in find_images([item], IMAGE_SUFFIXES | VIDEO_SUFFIXES | {".gif"}, recursive=recursive):
                yield _file_source(file, file.parent.relative_to(path) if path.is_dir() else Path())


def _named_source(item: str) -> Source:
    """The source of a path or an address."""
    if is_url(item):
        return UrlSource("image" if _url_suffix(item) in IMAGE_SUFFIXES else "video", item)
    return _file_source(Path(item))


def _file_source(path: Path, subfolder: Path = Path()) -> FileSource:
    """The source of a path; its suffix and its content decide between images and videos."""
    is_video = path.suffix.lower() in VIDEO_SUFFIXES or has_several_images(path)
    return FileSource("video" if is_video else "image", path, subfolder)


def _is_camera(path: Path) -> bool:
    """Whether a path is the device file of a camera, also of one that is not connected."""
    return path.is_char_device() or (path.parent.name == "dev" and re.fullmatch(r"video\d+", path.name) is not None)


def is_url(item: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]+://", item, re.IGNORECASE) is not None


def _url_suffix(url: str) -> str:
    return Path(urlsplit(url).path).suffix.lower()


def count_frames(sources: Iterable[Source], selection: FrameSelection = ALL_FRAMES) -> int | None:
    """Total number of frames; None if it is unknown, as for cameras, streams and videos without a frame count."""
    total = 0
    for source in sources:
        if source.kind == "image":
            count: int | None = 1
        elif isinstance(source, FileSource):
            count = _count_video_frames(source, selection)
        else:
            return None
        if count is None:
            return None
        total += count
    return total


def _count_video_frames(source: FileSource, selection: FrameSelection) -> int | None:
    """The number of selected frames; None if it is unknown; 1 for an unreadable file, which has one error."""
    try:
        video = _open_file(source)
    except DataError:
        return 1
    video.close()
    return selection.count(video.frame_count, video.rate) if video.frame_count else None


def read_frames(
    sources: Iterable[Source],
    selection: FrameSelection = ALL_FRAMES,
    stop_requested: Callable[[], bool] = lambda: False,
    ahead: int = MIN_READ_AHEAD,
) -> Generator[Frame | UnreadableFrame, None, None]:
    """Yield the frames of all sources, one source after the other.

    Args:
        selection: which frames of a video are read.
        stop_requested: checked while a live source delivers no image; true ends its frames.
        ahead: number of image files that are read before they are requested.
    """
    for kind, group in itertools.groupby(sources, lambda source: source.kind):
        if kind == "image":
            yield from map_in_background(_read_image, group, workers=READ_THREADS, ahead=ahead)
        else:
            for source in group:
                yield from _read_video(source, selection, stop_requested)


def _read_image(source: Source) -> Frame | UnreadableFrame:
    try:
        if isinstance(source, UrlSource):
            return Frame(source, download_image(source.url))
        assert isinstance(source, FileSource)
        return Frame(source, read_image(source.path))
    except DataError as error:
        return UnreadableFrame(source, error)


def _read_video(
    source: Source, selection: FrameSelection, stop_requested: Callable[[], bool]
) -> Iterator[Frame | UnreadableFrame]:
    """The frames of a video, a stream or a camera."""
    try:
        reader = _open_reader(source)
    except DataError as error:
        yield UnreadableFrame(source, error)
        return
    if isinstance(reader, LiveVideo):
        rate = reader.rate
        frames = reader.frames(selection, stop_requested)
    else:
        rate = reader.rate / selection.stride
        frames = reader.frames(selection)
    with contextlib.closing(reader):
        for item in frames:
            if isinstance(item, DataError):
                yield UnreadableFrame(source, item)
            else:
                yield Frame(source, item.image, item.number, item.seconds, rate, reader.aspect, reader.is_live)


def _open_reader(source: Source) -> VideoReader | LiveVideo:
    if isinstance(source, FileSource):
        return _open_file(source)
    if isinstance(source, CameraSource):
        return open_camera(source)
    reader = open_video(source.url, source.name)
    if reader.frame_count:
        return reader
    return LiveVideo(reader, reopen=lambda: open_video(source.url, source.name))


def _open_file(source: FileSource) -> VideoReader:
    if is_numbered_pattern(source.path):
        return NumberedImages(source.path)
    if source.path.suffix.lower() in MULTI_IMAGE_SUFFIXES:
        return MultiImageFile(source.path)
    return open_video(source.path, source.name)


def open_camera(source: CameraSource) -> LiveVideo:
    """Open a camera.

    Raises:
        DataError: there is none, or another program uses it.
    """
    try:
        reader = OpenCVVideo(source.device, source.name)
    except DataError as error:
        raise DataError(f"{source.name} cannot be opened; connect it, and close other programs that use it") from error
    return LiveVideo(reader)
