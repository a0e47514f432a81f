"""List, read, convert and write image files."""

from __future__ import annotations

import glob
from collections.abc import Collection, Sequence
from pathlib import Path

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images.decoding import decode_image

IMAGE_SUFFIXES = frozenset(".bmp .jpeg .jpg .png .pgm .ppm .tif .tiff .webp".split())
"""Suffixes of the files that count as images when a folder is listed."""
WRITABLE_SUFFIXES = IMAGE_SUFFIXES - {".pgm"}
"""Suffixes of the formats that OpenCV writes in colour on every system."""


def find_images(inputs: Sequence[str | Path], suffixes: Collection[str] = IMAGE_SUFFIXES) -> list[Path]:
    """List files, the files in folders (not in their subfolders) and the matches of glob patterns, each file once.

    Files in folders need one of the ``suffixes``; other files may have any.

    Raises:
        DataError: an input that does not exist, a folder without images, or a pattern that matches no file.
    """
    found: dict[Path, Path] = {}
    for item in inputs:
        for path in _expand(str(item), suffixes):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _expand(item: str, suffixes: Collection[str]) -> list[Path]:
    path = Path(item)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(child for child in path.iterdir() if child.suffix.lower() in suffixes and child.is_file())
        if not files:
            raise DataError(f"no images in folder {item} (looked for {' '.join(sorted(suffixes))})")
        return files
    if not glob.has_magic(item):
        raise DataError(f"no such file or folder: {item}")
    files = sorted(match for match in map(Path, glob.glob(item, recursive=True)) if match.is_file())
    if not files:
        raise DataError(f"no file matches {item}")
    return files


def read_image(path: str | Path, *, upright: bool = True) -> np.ndarray:
    """Read an image file, grey, transparent and 16-bit ones too, as (H, W, 3) uint8 BGR.

    Args:
        upright: rotate the image by its EXIF orientation; COCO's annotations belong to images that are not rotated.

    Raises:
        DataError: the file cannot be read, or OpenCV cannot decode it.
    """
    try:
        # Unlike cv2.imread, reading the bytes accepts any file name on any system.
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return decode_image(data, upright=upright)
    except ValueError as error:
        raise DataError(f"{path} {error}; save it as JPEG or PNG, smaller if it is very large") from error


def to_bgr(image: np.ndarray) -> np.ndarray:
    """Convert an image in memory to (H, W, 3) uint8 BGR; an image in that form is not copied.

    Args:
        image: (H, W) or (H, W, 1) grey, (H, W, 3) BGR or (H, W, 4) BGRA, without its alpha; uint8 or uint16.

    Raises:
        DataError: ``image`` is None or empty, or has another shape or type.
    """
    if image is None:
        raise DataError("an image must be an array, not None, which cv2.imread returns for a file it cannot read")
    image = np.asarray(image)
    if image.ndim not in (2, 3) or not image.size or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise DataError(f"an image must be height x width with 1, 3 or 4 channels, not of shape {image.shape}")
    if image.dtype not in (np.uint8, np.uint16):
        raise DataError(f"an image must be of type uint8 or uint16, not {image.dtype}; scale it to 0-255")
    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 becomes 255, rounded
    if image.ndim == 2 or image.shape[2] == 1:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(image[..., :3])


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Write an image, complete or not at all; ``DataError`` if OpenCV cannot write the format of the suffix."""
    try:
        done, data = cv2.imencode(Path(path).suffix, image)
    except cv2.error as error:
        raise DataError(f"cannot write {path}: {error.err or error}; choose .jpg or .png") from error
    if not done:
        raise DataError(f"cannot write {path}: the format does not allow its size; choose .png")
    write_atomically(path, data.tobytes())
