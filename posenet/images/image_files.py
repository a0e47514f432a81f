"""List, read, convert and write image files."""

from __future__ import annotations

import glob
import logging
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeGuard, Union

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images.decoding import decode_image
from posenet.images.headers import declared_size, exif_orientation
from posenet.images.orientation import AnnotatedFrame, apply_orientation, find_annotated_frame, oriented_size
from posenet.settings import ExifFrame

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

_log = logging.getLogger(__name__)

ChannelOrder = Literal["bgr", "rgb"]
ImageInput: TypeAlias = Union[str, "os.PathLike[str]", np.ndarray, "PilImage"]
"""An image file, an image in memory as an array, or a PIL image."""

IMAGE_SUFFIXES = frozenset(".avif .bmp .heic .heif .hif .jpeg .jpg .png .pgm .ppm .tif .tiff .webp".split())
"""Files that count as images when a folder is listed. HEIC and AVIF need the extra ``heif``."""
WRITABLE_SUFFIXES = frozenset(".bmp .jpeg .jpg .png .ppm .tif .tiff .webp".split())
"""The formats that OpenCV writes everywhere, in colour."""


def find_images(
    inputs: Sequence[str | Path], suffixes: Collection[str] = IMAGE_SUFFIXES, *, recursive: bool = False
) -> list[Path]:
    """Expand files, folders and glob patterns, each image once, in the order given.

    A file that is named is included whatever its suffix. A folder is searched for ``suffixes``; a log message counts
    the other files in it.

    Args:
        recursive: search subfolders too, except hidden ones and links.

    Raises:
        DataError: an input that does not exist, a folder without images, or a pattern that matches no file.
    """
    found: dict[Path, Path] = {}
    for item in inputs:
        for path in _expand(str(item), suffixes, recursive):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _expand(item: str, suffixes: Collection[str], recursive: bool) -> list[Path]:
    path = Path(item)
    if path.is_file():
        return [path]
    if path.is_dir():
        left_out: Counter[str] = Counter()
        files = list(_search_folder(path, suffixes, recursive, left_out))
        if left_out:
            counts = ", ".join(f"{count} {suffix}" for suffix, count in sorted(left_out.items()))
            _log.warning("left out of folder %s: %s", item, counts)
        if not files:
            raise DataError(f"no images in folder {item} (looked for {' '.join(sorted(suffixes))})")
        return files
    if not glob.has_magic(item):
        raise DataError(f"no such file or folder: {item}{_separator_hint(item)}")
    files = sorted(match for match in map(Path, glob.glob(item, recursive=True)) if match.is_file())
    if not files:
        raise DataError(f"no file matches {item}{_separator_hint(item)}")
    return files


def _search_folder(folder: Path, suffixes: Collection[str], recursive: bool, left_out: Counter[str]) -> Iterator[Path]:
    """The files in a folder that have one of ``suffixes``; counts other files in ``left_out``, by suffix."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.is_symlink() or path.name.startswith("."):
                continue
            if recursive:
                yield from _search_folder(path, suffixes, recursive, left_out)
            else:
                left_out["folder"] += 1
        elif path.name.startswith("._"):
            left_out["._"] += 1  # macOS keeps the attributes of a.png in ._a.png on other file systems
        elif path.suffix.lower() in suffixes:
            if path.is_file():
                yield path
        elif not path.name.startswith("."):
            left_out[path.suffix.lower() or "without suffix"] += 1


def _separator_hint(path: str | Path) -> str:
    """The remedy for a path with the separators of Windows on another system."""
    corrected = str(path).replace("\\", "/")
    return f"; folders are separated by /: {corrected}" if corrected != str(path) and glob.glob(corrected) else ""


def read_image(path: str | Path, *, upright: bool = True) -> np.ndarray:
    """Read an image file, grey, transparent and 16-bit ones too, as (H, W, 3) uint8 BGR.

    Args:
        upright: rotate the image by its EXIF orientation.

    Raises:
        DataError: the file cannot be read or decoded.
    """
    data = _read_bytes(path)
    try:
        return decode_image(data, upright=upright)
    except ValueError as error:
        raise DataError(f"{path} {error}") from error


def read_annotated_image(
    path: str | Path, height: int, width: int, exif_frame: ExifFrame
) -> tuple[np.ndarray, AnnotatedFrame]:
    """Read an image file as (H, W, 3) uint8 BGR in the frame of its annotations; see ``find_annotated_frame``.

    Args:
        height, width: the annotated size. An image may have another one.

    Raises:
        DataError: the file cannot be read or decoded.
    """
    data = _read_bytes(path)
    frame = find_annotated_frame(data, height, width, exif_frame)
    try:
        return apply_orientation(decode_image(data, upright=False), frame.orientation), frame
    except ValueError as error:
        raise DataError(f"{path} {error}") from error


class ImageHeader(NamedTuple):
    """The size of the pixels in an image file, and its EXIF orientation."""

    height: int
    width: int
    orientation: int

    @property
    def displayed_size(self) -> tuple[int, int]:
        """(height, width) of the image as viewers display it."""
        return oriented_size(self.height, self.width, self.orientation)


def read_header(path: str | Path) -> ImageHeader:
    """Read the size and the orientation of an image file; formats without a known header are decoded.

    Raises:
        DataError: the file cannot be read or decoded.
    """
    data = _read_bytes(path)
    size = declared_size(data)
    if size is None:
        try:
            height, width = decode_image(data, upright=False).shape[:2]
        except ValueError as error:
            raise DataError(f"{path} {error}") from error
        size = height, width
    return ImageHeader(*size, exif_orientation(data))


def _read_bytes(path: str | Path) -> np.ndarray:
    """(N,) uint8 content of a file. Unlike ``cv2.imread``, this accepts any file name on any system."""
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}{_separator_hint(path)}") from error


def to_bgr(image: ImageInput, channels: ChannelOrder = "bgr") -> np.ndarray:
    """Convert an image to (H, W, 3) uint8 BGR; an array in that form is not copied.

    Args:
        image: the path of an image file, which is read upright; a PIL image; or an array: (H, W) or (H, W, 1) grey,
            (H, W, 3) colours or (H, W, 4) colours and alpha, which is dropped; uint8 or uint16.
        channels: order of the colours of an array.

    Raises:
        DataError: ``image`` is None or empty, has another shape or type, or its file cannot be read.
    """
    if channels not in ("bgr", "rgb"):
        raise DataError(f"channels must be 'bgr' or 'rgb', not {channels!r}")
    if image is None:
        raise DataError("an image must be an array, not None, which cv2.imread returns for a file it cannot read")
    if isinstance(image, (str, os.PathLike)):
        return read_image(Path(image))
    if _is_pil_image(image):
        channels = "rgb"
        # Modes with other numbers than bytes, such as I;16, have one channel and become arrays of these numbers.
        image = image if image.mode.startswith(("I", "F")) else image.convert("RGB")
    image = np.asarray(image)
    if image.ndim not in (2, 3) or not image.size or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise DataError(f"an image must be height x width with 1, 3 or 4 channels, not of shape {image.shape}")
    if image.dtype not in (np.uint8, np.uint16):
        raise DataError(f"an image must be of type uint8 or uint16, not {image.dtype}; scale it to 0-255")
    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 becomes 255, rounded
    if image.ndim == 2 or image.shape[2] == 1:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(image[..., :3] if channels == "bgr" else image[..., 2::-1])


def _is_pil_image(image: object) -> TypeGuard[PilImage]:
    """Whether an image is PIL's. If PIL has not been imported, it is not."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(image, pil.Image)


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Write an image, complete or not at all; ``DataError`` if OpenCV cannot write the format of the suffix."""
    try:
        done, data = cv2.imencode(Path(path).suffix, image)
    except cv2.error as error:
        raise DataError(f"cannot write {path}: {error.err or error}; choose .jpg or .png") from error
    if not done:
        raise DataError(f"cannot write {path}: the format does not allow its size; choose .png")
    write_atomically(path, data.tobytes())
