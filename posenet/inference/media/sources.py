"""The inputs of prediction, and the frames that are read from them: images, videos, streams and cameras."""

from __future__ import annotations

import codecs
import contextlib
import math
import numbers
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.request import url2pathname

import numpy as np

from posenet.downloading import first_bytes, is_address, is_data_address, split_address, without_credentials
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import IMAGE_SUFFIXES, find_images, holds_several_images, is_web_page

VIDEO_SUFFIXES = frozenset(
    ".264 .265 .3g2 .3gp .apng .asf .avi .divx .dv .f4v .flv .gif .h264 .h265 .hevc .ivf .m1v .m2ts .m2v .m4v .mjpeg "
    ".mjpg .mkv .mov .mp4 .mpeg .mpg .mts .mxf .nut .ogv .rm .ts .vob .webm .wmv .y4m".split()
)
"""Files that count as videos when a folder is listed."""
OTHER_SUFFIXES = frozenset(".pth .pt .onnx .yaml .yml .json .h5 .toml".split())
"""Files that are given in place of images by mistake."""
MAX_NAME = 100
"""Characters of a name that a message shows, where the name may be an image as text."""
START_BYTES = 4096
"""How much of a file or of an address is read to see what it is."""
DEFAULT_FRAME_RATE = 25.0
"""Frames per second, where a video or a camera states no plausible rate."""
MIN_FRAME_RATE = 1.0
MAX_FRAME_RATE = 480.0
"""Some files state the ticks of a clock instead of a rate."""
MAX_UNREADABLE_IN_A_ROW = 100
"""After this many frames in a row that cannot be decoded, a video counts as ended, and a camera as lost."""

_CAMERA_NUMBER = re.compile(r"[0-9]{1,4}")

_MAY_HOLD_SEVERAL = frozenset(".apng .avif .gif .png .tif .tiff .webp".split())
_IMAGE_START = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8|BM|II\*\0|MM\0\*|RIFF.{4}WEBP|P[2356]\s|....ftyp(avif|hei[cxms]|mif1|msf1)", re.DOTALL
)
_ANIMATION_START = re.compile(rb"GIF8|\x89PNG.*acTL|....ftypavis", re.DOTALL)
_ANIMATED_WEBP = re.compile(rb"RIFF.{4}WEBPVP8X.{4}(.)", re.DOTALL)
_ANIMATION_FLAG = 2

Kind = Literal["image", "animation", "video", "camera", "memory"]
"""An animation is an image file with several images. An image that a program holds in memory comes from no file."""


@dataclass(frozen=True)
class Source:
    """Something that frames are read from."""

    kind: Kind
    location: Path | str | int
    """The path of a file; an address; of a camera, its number or its device file ``/dev/video0``."""
    subfolder: Path = Path()
    """Where a recursive search found it, relative to the folder that was searched."""
    block: int = field(default=0, compare=False)
    """Only images of the same block are predicted together; see ``pipeline.split_into_blocks``."""

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
    """Which frames of a video are read."""

    start: float = 0.0
    """Seconds after the first frame; earlier frames are skipped."""
    duration: float = math.inf
    """Seconds after ``start``; later frames are not read."""
    stride: int = 1
    """Every how many frames one is read."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` if a value selects no frame of any video."""
        is_stride = isinstance(self.stride, numbers.Integral) and self.stride >= 1
        if not (0 <= self.start < math.inf and self.duration >= 0 and is_stride):
            values = f"start {self.start}, duration {self.duration} and stride {self.stride}"
            raise ConfigError(f"{values} select no frame; give seconds >= 0, and a stride >= 1")
        object.__setattr__(self, "stride", int(self.stride))  # also of NumPy's numbers, which are no JSON


def plausible_rate(rate: float) -> float:
    """A stated frame rate, or the default where it is implausible or not a number."""
    return rate if MIN_FRAME_RATE <= rate <= MAX_FRAME_RATE else DEFAULT_FRAME_RATE


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
            raise DataError(f"cannot read {name[:MAX_NAME]}: {reason}; choose another input") from error
        for source in found:
            key = os.path.realpath(source.path) if source.path is not None else source
            sources.setdefault(key, source)
    return list(sources.values())


def _expand_input(item: str, recursive: bool) -> Iterator[Source]:
    if item.lower().startswith("file://"):
        address = split_address(item)
        if address.hostname not in (None, "localhost"):
            raise DataError(f"{item} is a file of another machine; give a path of this one, as file:///folder/a.jpg")
        item = url2pathname(address.path)
    if item.startswith("~") and not os.path.lexists(item):  # where no shell has replaced it
        item = os.path.expanduser(item)
    path = Path(item)
    if not item:  # as of a variable that is not set
        raise DataError("the name of an input is empty; give a file, or . for this folder")
    if is_data_address(item):
        raise DataError("an input is a data: address; posenet.Predictor takes it as an image, or write it to a file")
    if _CAMERA_NUMBER.fullmatch(item) and not path.exists():
        yield Source("camera", int(item))
    elif path.is_char_device() or (path.parent.name == "dev" and re.fullmatch(r"video\d+", path.name)):
        yield Source("camera", item)  # also one that is not connected
    elif is_address(item):
        yield _named_source(item)
    elif path.suffix.lower() in OTHER_SUFFIXES and path.is_file():
        raise DataError(
            f"{item} has weights, settings or data, not images: give images, videos or their folder, and weights as "
            "--checkpoint FILE"
        )
    else:
        for file in find_images([item], IMAGE_SUFFIXES | VIDEO_SUFFIXES, recursive=recursive):
            subfolder = file.parent.relative_to(path) if path.is_dir() else Path()
            yield _file_source(file, subfolder)


def parse_standard_input(data: bytes) -> list[Source]:
    """The sources in a list of files: one path or address per line, or a NUL after each. They are not checked here.

    ``DataError`` if it is something else, such as an image or text in UTF-16.
    """
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if is_utf16 or any(byte < 32 and byte not in b"\0\t\n\r" for byte in data[:4096]):
        raise DataError("standard input is no list of files; write one path per line, in UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    entries = data.split(b"\0") if b"\0" in data else [line.strip() for line in data.splitlines()]
    return [_named_source(os.fsdecode(entry)) for entry in entries if entry]


def _named_source(item: str) -> Source:
    return Source(_kind_of_address(item), item) if is_address(item) else _file_source(Path(item))


def _file_source(path: Path, subfolder: Path = Path()) -> Source:
    """The source of a file. Its content says what it is, where its suffix allows several kinds or none."""
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("image", path, subfolder)
    if suffix in VIDEO_SUFFIXES - _MAY_HOLD_SEVERAL:
        return Source("video", path, subfolder)
    try:
        kind = _kind_of_start(read_input(path, START_BYTES))
    except OSError:  # perhaps a FIFO, which Pillow would open and wait for; reading it will report that
        return Source("image", path, subfolder)
    if kind == "video":
        kind = "video" if suffix not in IMAGE_SUFFIXES and _is_media(path) else "image"
    else:
        with contextlib.suppress(Exception):  # of a damaged file; reading it reports what is wrong
            kind = "animation" if holds_several_images(path) else "image"
    return Source(kind, path, subfolder)


def _is_media(path: Path) -> bool:
    """Whether FFmpeg, which takes any text for a recording of a terminal, reads a file."""
    try:
        import av

        with av.open(f"file:{path}") as container:
            return container.format.name != "tty" and bool(container.streams)
    except UnicodeError:  # in its tags, which FFmpeg has read
        return True
    except Exception:  # of many classes; reading the file as an image reports what is wrong
        return False


def _kind_of_address(url: str) -> Kind:
    """What is at an address, by its suffix, or by its first bytes."""
    address = split_address(url)
    suffix = Path(address.path).suffix.lower()
    if suffix in IMAGE_SUFFIXES - _MAY_HOLD_SEVERAL:
        return "image"
    if address.scheme not in ("http", "https") or suffix in VIDEO_SUFFIXES - _MAY_HOLD_SEVERAL:
        return "video"
    start = first_bytes(url, START_BYTES)
    kind = _kind_of_start(start)
    # Reading a web page as an image reports that it is one.
    return "image" if kind == "video" and (suffix in _MAY_HOLD_SEVERAL or is_web_page(start)) else kind


def _kind_of_start(start: bytes) -> Kind:
    """What the first bytes of a file are those of; a video, if of no image."""
    webp = _ANIMATED_WEBP.match(start)
    if _ANIMATION_START.match(start) or (webp and webp[1][0] & _ANIMATION_FLAG):
        return "animation"
    return "image" if _IMAGE_START.match(start) else "video"
