"""Images in and out: listing, reading ahead, conversion to 8-bit BGR, writing."""

from __future__ import annotations

import glob
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images.decoding import MAX_PIXELS, declared_size

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = frozenset(".bmp .jpeg .jpg .png .pgm .ppm .tif .tiff .webp".split())
"""Files that count as images when a folder is listed."""
WRITTEN = SUFFIXES - {".pgm"}
"""Those of them that OpenCV writes everywhere, in colour."""


def read_image(path: str | Path, *, upright: bool = True) -> np.ndarray:
    """Read an image as (H, W, 3) uint8 BGR; grey, transparent and 16-bit files are converted.

    Args:
        upright: turn the image as its EXIF orientation says. Annotations are made on images that are not
            turned.

    Raises:
        DataError: no such file, or not an image that OpenCV can read.
    """
    try:
        # Decoding from memory, unlike cv2.imread, takes any file name on any system.
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if (size := declared_size(data)) and math.prod(size) > MAX_PIXELS:
        raise DataError(f"{path} claims to be {size[1]} x {size[0]} pixels, more than any image; make it smaller")
    flags = cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(data, flags) if len(data) else None
    except cv2.error as error:
        raise DataError(f"cannot decode {path}: {error.err or error}; make it smaller or save it anew") from error
    if image is None:
        raise DataError(f"{path} is not an image that OpenCV can read; convert it to JPEG or PNG")
    return image


def read_ahead(
    paths: Iterable[Path], *, upright: bool = True, workers: int = 2, ahead: int = 8
) -> Iterator[np.ndarray | DataError]:
    """Read images in the given order on a few threads, at most ``ahead`` before they are asked for.

    An unreadable one yields its error, so that the caller decides whether to go on.
    """

    def attempt(path: Path) -> np.ndarray | DataError:
        try:
            return read_image(path, upright=upright)
        except DataError as error:
            return error

    return map_ahead(attempt, paths, workers=workers, ahead=ahead)


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1, ahead: int = 1
) -> Generator[Result, None, None]:
    """Like ``map``, in the same order, but on other threads and ``ahead`` items before the result is asked for.

    ``items`` are taken on the caller's thread.
    """
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def to_bgr(image: np.ndarray) -> np.ndarray:
    """Any image in memory as (H, W, 3) uint8 BGR; one that is so already comes back as it is.

    Args:
        image: (H, W) or (H, W, 1) grey, (H, W, 3) BGR or (H, W, 4) BGRA, whose alpha is dropped; uint8 or uint16.

    Raises:
        DataError: an empty image, another shape or another type.
    """
    if image is None:
        raise DataError("an image must be an array, not None, which cv2.imread gives for a file it cannot read")
    image = np.asarray(image)
    if image.ndim not in (2, 3) or not image.size or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise DataError(f"an image must be height x width with 1, 3 or 4 channels, not of shape {image.shape}")
    if image.dtype not in (np.uint8, np.uint16):
        raise DataError(f"an image must be of type uint8 or uint16, not {image.dtype}; scale it to 0-255")
    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] == 1:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(image[..., :3])


def find_images(inputs: Sequence[str | Path], suffixes: Collection[str] = SUFFIXES) -> list[Path]:
    """Expand files, folders (not their subfolders) and glob patterns, each image once, in the order given.

    A file that is named is taken whatever its suffix; of a folder only ``suffixes`` are.

    Raises:
        DataError: an input that does not exist, a folder without images, a pattern that matches no file.
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
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in suffixes and p.is_file())
        if not files:
            raise DataError(f"no images in folder {item} (looked for {' '.join(sorted(suffixes))})")
        return files
    if not glob.has_magic(item):
        raise DataError(f"no such file or folder: {item}")
    files = sorted(p for p in map(Path, glob.glob(item, recursive=True)) if p.is_file())
    if not files:
        raise DataError(f"no file matches {item}")
    return files


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Write an image in the format of its suffix, complete or not at all.

    Raises:
        DataError: a suffix that OpenCV cannot write.
    """
    try:
        done, data = cv2.imencode(Path(path).suffix, image)
    except cv2.error as error:
        raise DataError(f"cannot write {path}: {error.err or error}; choose .jpg or .png") from error
    if not done:
        raise DataError(f"cannot write {path}: its size does not suit the format; choose .png")
    write_atomically(path, data.tobytes())
