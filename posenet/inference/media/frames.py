"""From inputs of any kind to frames: ``find_sources`` and ``read_frames``. ``video.py`` reads all but images."""

import codecs
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import logging
import math
import numbers
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, cast

import numpy as np
from PIL import Image

from posenet.downloading import first_bytes, is_address, is_data_address, split_address, without_credentials
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import (
    IMAGE_SUFFIXES,
    ChannelOrder,
    ImageInput,
    decode_reduced_image,
    find_images,
    holds_several_images,
    image_errors,
    is_encoded,
    is_web_page,
    read_image,
    read_image_file,
    to_bgr,
)
from posenet.messages import MAX_REASON, to_single_line
from posenet.threads import map_in_threads

VIDEO_SUFFIXES = frozenset(
    ".264 .265 .3g2 .3gp .apng .asf .avi .divx .dv .f4v .flv .gif .h264 .h265 .hevc .ivf .m1v .m2ts .m2v .m4v .mjpeg "
    ".mjpg .mkv .mov .mp4 .mpeg .mpg .mts .mxf .nut .ogv .rm .ts .vob .webm .wmv .y4m".split()
)
"""Files that count as videos when a folder is listed."""
START_BYTES = 4096
"""How much of a file or of an address is read to see what it is."""
READ_AHEAD = 8
"""Number of image files or frames of a video that are read before they are requested."""
READ_THREADS = 4
"""Number of threads that read image files."""
NUM_BLOCKS = 16
"""The number of blocks is a multiple of this, so that 2, 4, 8 and 16 processes get equal shares."""
MAX_BLOCK_BATCHES = 64
"""Batches in a block at most."""
DEFAULT_FRAME_RATE = 25.0
"""Frames per second, where a video or a camera states no plausible rate."""

_log = logging.getLogger(__name__)

_MAY_HOLD_SEVERAL = frozenset(".apng .avif .gif .png .tif .tiff .webp".split())
_IMAGE_START = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8|BM|II\*\0|MM\0\*|RIFF.{4}WEBP|P[2356]\s|....ftyp(avi[fs]|hei[cxms]|mif1|msf1)",
    re.DOTALL,
)
_ANIMATION_START = re.compile(
    rb"GIF8|\x89PNG.*acTL|....ftypavis|RIFF.{4}WEBPVP8X.{4}[%b]" % re.escape(bytes(n for n in range(256) if n & 2)),
    re.DOTALL,
)

Kind = Literal["image", "video", "camera", "memory"]
"""An image file with several images is a video. An image that a program holds in memory comes from no file."""


@dataclass(frozen=True)
class Source:
    """Something that frames are read from."""

    kind: Kind
    location: Path | str | int
    """The path of a file; an address; of a camera, its number or its device file ``/dev/video0``."""
    subfolder: Path = Path()
    """Where a recursive search found it, relative to the folder that was searched."""
    block: int = field(default=0, compare=False)
    """Only images of the same block are predicted together; see ``split_into_blocks``."""

    @property
    def path(self) -> Path | None:
        """The path of a file; None for other sources."""
        return self.location if isinstance(self.location, Path) else None

    @property
    def url(self) -> str | None:
        """The address; None for other sources."""
        is_url = isinstance(self.location, str) and self.kind != "camera"
        return str(self.location) if is_url else None

    @property
    def name(self) -> str:
        """The path as the user wrote it, the address without a user name and a password, or ``camera 0``."""
        if self.url is not None:
            return without_credentials(self.url)
        return f"camera {self.location}" if self.kind == "camera" else str(self.location)

    @property
    def stem(self) -> str:
        """Name of output files, without the suffix."""
        if self.url is not None:
            address = split_address(self.url)
            return Path(address.path).stem or address.hostname or "stream"
        path = Path(str(self.location))
        return f"camera-{path.name}" if self.kind == "camera" else path.stem

    @property
    def suffix(self) -> str:
        """The suffix of a file or of an address; empty for other sources."""
        return Path(split_address(self.url).path if self.url is not None else self.path or "").suffix


IN_MEMORY = Source("memory", "an image in memory")
"""The source of an array or a PIL image."""


@dataclass(frozen=True)
class Frame:
    """An image file, or one image of a video, a stream or a camera; or why one could not be read."""

    source: Source
    image: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 3), np.uint8))
    """(H, W, 3) BGR uint8; empty if it could not be read."""
    number: int | None = None
    """Counts the frames of a source from 0; None for an image file."""
    seconds: float = 0.0
    """Time since the source's first frame."""
    rate: float = 0.0
    """Frames per second that are read from the source; 0 for an image file."""
    aspect: float = 1.0
    """Width of a pixel divided by its height."""
    expected: int = 0
    """How many frames are expected from this one to the end of the source; 0 if that is not known."""
    is_live: bool = False
    """Whether the source is a camera or a live stream, which does not wait for its reader."""
    error: DataError | None = None
    """Why the frame could not be read, or the source could not be opened."""
    whole_size: tuple[int, int] | None = None
    """(height, width) of the image file if ``image`` is a reduced copy, of an integer fraction of that size."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image, in whose pixels people are."""
        return self.whole_size or (self.image.shape[0], self.image.shape[1])


@dataclass(frozen=True, kw_only=True)
class FrameSelection:
    """Which files of folders, and which frames of videos are read."""

    recursive: bool = False
    """Search the subfolders of folders too."""

    start: float = 0.0
    """Seconds after the first frame of every video; earlier frames are skipped."""
    duration: float = math.inf
    """Seconds after ``start``; later frames are not read."""
    stride: int = 1
    """Every how many frames of a video one is read."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` if a value selects no frame of any video."""
        is_stride = isinstance(self.stride, numbers.Integral) and self.stride >= 1
        if not (0 <= self.start < math.inf and self.duration >= 0 and is_stride):
            values = f"start {self.start}, duration {self.duration} and stride {self.stride}"
            raise ConfigError(f"{values} select no frame; give seconds >= 0, and a stride >= 1")


FrameInput: TypeAlias = Source | ImageInput | int
"""What frames are read from: the name of something, as ``posenet predict`` takes it, the number of a camera, a source
that ``find_sources`` has found, or an image in memory."""


def find_sources(inputs: Iterable[str | os.PathLike[str] | int | Source], *, recursive: bool = False) -> list[Source]:
    """Find the sources that files, folders, patterns, addresses and cameras name, each once, in the given order.

    A number that is not the name of a file is a camera. ``DataError`` if an input does not exist or is no image or
    video, a folder has none, or a pattern has no match.
    """
    sources: dict[object, Source] = {}
    for item in inputs:
        name = os.fspath(item) if isinstance(item, os.PathLike) else str(item)
        try:
            found = [item] if isinstance(item, Source) else list(_expand_input(name, recursive))
        except (OSError, ValueError) as error:  # the name is too long or none, or a folder may not be read
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"cannot read {name[:100]}: {reason}; choose another input") from error
        for source in found:
            key = os.path.realpath(source.path) if source.path is not None else source
            sources.setdefault(key, source)
    return list(sources.values())


def _expand_input(item: str, recursive: bool) -> Iterator[Source]:
    path = Path(item)
    if not item:  # as of a variable that is not set
        raise DataError("the name of an input is empty; give a file, or . for this folder")
    if is_data_address(item):
        raise DataError("an input is a data: address; posenet.Predictor takes it as an image, or write it to a file")
    if re.fullmatch(r"[0-9]{1,4}", item) and not path.exists():
        yield Source("camera", int(item))
    elif path.is_char_device() or (path.parent.name == "dev" and re.fullmatch(r"video\d+", path.name)):
        yield Source("camera", item)  # also one that is not connected
    elif is_address(item):
        yield _address_source(item)
    else:
        for file in find_images([item], IMAGE_SUFFIXES | VIDEO_SUFFIXES, recursive=recursive):
            subfolder = file.parent.relative_to(path) if path.is_dir() else Path()
            yield file_source(file, subfolder)


def parse_standard_input(data: bytes) -> list[Source]:
    """The sources in a list of files: one path or address per line, or a NUL after each. They are not checked here.

    ``DataError`` if it is something else, such as an image.
    """
    if any(byte < 32 and byte not in b"\0\t\n\r" for byte in data[:4096]):
        raise DataError("standard input is no list of files; write one path per line, in UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    entries = data.split(b"\0") if b"\0" in data else [line.strip() for line in data.splitlines()]
    names = [os.fsdecode(entry) for entry in entries if entry]
    return [_address_source(name) if is_address(name) else file_source(Path(name)) for name in names]


def file_source(path: Path, subfolder: Path = Path()) -> Source:
    """The source of a file. Its content says what it is, where its suffix allows several kinds or none."""
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("image", path, subfolder)
    if suffix in VIDEO_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("video", path, subfolder)
    try:
        start = read_input(path, START_BYTES)
    except (OSError, ValueError):  # perhaps a FIFO, which Pillow would open and wait for; reading it will report that
        return Source("image", path, subfolder)
    if not _IMAGE_START.match(start):
        return Source("image" if suffix in IMAGE_SUFFIXES else "video", path, subfolder)
    has_several = bool(_ANIMATION_START.match(start))
    with contextlib.suppress(Exception):  # of a file that is cut off; reading it reports what is wrong
        has_several = holds_several_images(path)
    return Source("video" if has_several else "image", path, subfolder)


def _address_source(url: str) -> Source:
    """The source of an address. Its suffix says what it is, or its first bytes."""
    address = split_address(url)
    suffix = Path(address.path).suffix.lower()
    if suffix in IMAGE_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("image", url)
    if address.scheme not in ("http", "https") or suffix in VIDEO_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("video", url)
    start = first_bytes(url, START_BYTES)
    is_image = _IMAGE_START.match(start) and not _ANIMATION_START.match(start)
    # Reading a web page as an image reports that it is one.
    return Source("image" if is_image or is_web_page(start) else "video", url)


def split_into_blocks(sources: Sequence[Source], batch_size: int) -> list[list[Source]]:
    """Split sources into numbered blocks whose images may run together: some batches of images, or one video.

    If every process of an evaluation predicts whole blocks, no batch contains images of two, so that the people do not
    depend on their number. Long blocks fill the batches better.
    """
    blocks: list[list[Source]] = []
    for is_image, group in itertools.groupby(sources, lambda source: source.kind == "image"):
        members = list(group)
        num_batches = math.ceil(len(members) / batch_size)
        num_blocks = NUM_BLOCKS * math.ceil(num_batches / (NUM_BLOCKS * MAX_BLOCK_BATCHES))
        ends = [num_batches * number // num_blocks * batch_size for number in range(num_blocks + 1)]
        parts = [members[start:end] for start, end in itertools.pairwise(ends)] if is_image else [[m] for m in members]
        blocks += filter(None, parts)
    return [[dataclasses.replace(source, block=number) for source in block] for number, block in enumerate(blocks)]


def read_frames(
    inputs: FrameInput | Iterable[FrameInput],
    channels: ChannelOrder = "bgr",
    selection: FrameSelection | None = None,
    *,
    stop_requested: Callable[[], bool] = lambda: False,
    reduction_of: Callable[[tuple[int, int]], int] | None = None,
) -> Generator[Frame, None, None]:
    """Read the frames of images, folders, videos, streams and cameras, one input after the other.

    What cannot be read is a frame with an ``error``, and so is an input of several that does not exist. Only a few
    frames are in memory at a time. An array may be overwritten when the next image is requested.

    Args:
        inputs: one or several; an iterable is read on the caller's thread, as its images are needed.
        channels: order of the colours of arrays.
        selection: which files of folders and frames of videos; None is all but those of subfolders.
        stop_requested: checked while a live source delivers no image; true ends its frames.
        reduction_of: how much smaller JPEG files are read; see ``decode_reduced_image``. None reads them whole.

    Raises:
        DataError: the only input does not exist, is a folder without images or videos, a pattern without a match, or
            no image.
        ConfigError: a video needs PyAV, which is not installed.
    """
    selection = selection or FrameSelection()
    if is_single_input(inputs):
        found: Iterable[Source | Frame] = _find(cast(FrameInput, inputs), channels, selection.recursive)
    else:
        found = _find_all(cast(Iterable[FrameInput], inputs), channels, selection.recursive)
    for is_image, group in itertools.groupby(found, lambda item: isinstance(item, Source) and item.kind == "image"):
        if is_image:
            read = functools.partial(_read_image, reduction_of=reduction_of)
            sources = cast(Iterator[Source], group)
            yield from map_in_threads(read, sources, workers=READ_THREADS, ahead=READ_AHEAD)
            continue
        for item in group:
            if isinstance(item, Frame):
                yield item
            else:
                yield from _read_video(item, selection, stop_requested)


def is_single_input(inputs: object) -> bool:
    """Whether this is one input, possibly of a wrong type, instead of an iterable of several.

    An array of four dimensions has several images; one of bytes is an image file, and another one of a single
    dimension, or a column of a table, has names.
    """
    is_one = isinstance(inputs, (str, os.PathLike, int, Source, Image.Image)) or is_encoded(inputs)
    return is_one or getattr(inputs, "ndim", None) in (0, 2, 3) or not isinstance(inputs, Iterable)


def _find(item: FrameInput, channels: ChannelOrder, recursive: bool) -> list[Source] | list[Frame]:
    """The sources of one input, or the frame of an image in memory; ``DataError`` if there are none."""
    if isinstance(item, Source):
        return [item]
    if isinstance(item, (str, os.PathLike, int)) and not is_encoded(item):
        return find_sources([item], recursive=recursive)
    image = to_bgr(cast(ImageInput, item), channels)
    is_shared = isinstance(item, np.ndarray) and np.may_share_memory(image, item)
    return [Frame(IN_MEMORY, image.copy() if is_shared else image)]


def _find_all(items: Iterable[FrameInput], channels: ChannelOrder, recursive: bool) -> Iterator[Source | Frame]:
    """The sources and the frames of several inputs; a frame with an error for each that has none."""
    for item in items:
        try:
            yield from _find(item, channels, recursive)
        except Exception as error:
            is_name = isinstance(item, (str, os.PathLike)) and not is_encoded(item)
            yield _failed(Source("image", Path(cast(str, item))) if is_name else IN_MEMORY, error)


def _failed(source: Source, error: Exception) -> Frame:
    """The frame of an input whose reading has raised an error, of whatever library; that of a package is raised."""
    if isinstance(error, ConfigError):
        raise error
    text = to_single_line(str(error))
    if not isinstance(error, DataError):
        _log.debug("reading %s has failed", source.name, exc_info=error)
        reason = f"{type(error).__name__}: {text[:MAX_REASON]}"
        text = f"{source.name} cannot be read ({reason}); convert it, or leave it out"
    return Frame(source, error=DataError(text))


def require_pyav() -> None:
    """Raise ``ConfigError`` if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError(
            "videos and cameras need the package PyAV, which brings its own FFmpeg: pip install 'simplepose[video]'"
        )


def _read_image(source: Source, reduction_of: Callable[[tuple[int, int]], int] | None) -> Frame:
    try:
        if source.url is not None:
            return Frame(source, read_image(source.url))
        assert source.path is not None
        with image_errors(source.path):
            image, size = decode_reduced_image(read_image_file(source.path), reduction_of or (lambda size: 1))
        return Frame(source, image, whole_size=size)
    except Exception as error:
        return _failed(source, error)


def _read_video(source: Source, selection: FrameSelection, stop_requested: Callable[[], bool]) -> Iterator[Frame]:
    """The frames of a video, a stream or a camera; a last one with the error that ends them."""
    try:
        require_pyav()
        from posenet.inference.media.video import read_video

        yield from read_video(source, selection, stop_requested)
    except Exception as error:
        yield _failed(source, error)
