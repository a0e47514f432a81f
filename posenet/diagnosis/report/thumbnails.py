"""Small copies of images as JPEG, with a limit for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.errors import DataError
from posenet.images import read_annotated_image
from posenet.progress_bar import progress_bar
from posenet.settings import ExifFrame

MAX_TOTAL_BYTES = 13_000_000
"""Limit of all thumbnails together. Base64 makes them a third larger, 17 MB in the page; with the people, the page
stays under 25 MB."""
MAX_BYTES = 90_000
"""Limit of one thumbnail, if there are few."""
JPEG_SIZES = ((640, 85), (640, 75), (560, 70), (480, 65), (400, 60), (320, 50), (200, 40))
"""(longer side in pixels, JPEG quality), from the best to the smallest. The first that fits is used."""
NO_FOLDER = "The report was written without the images (--images), so the people stand on a plain ground."


class Thumbnail(NamedTuple):
    """A JPEG, or a note that says why there is none."""

    jpeg: bytes
    note: str


def read_thumbnails(
    images: Sequence[CocoImage], folder: str | Path | None, exif_frame: ExifFrame, *, progress: bool = True
) -> list[Thumbnail]:
    """Read images in the frame of their annotations (see ``find_annotated_frame``), and make them small."""
    if folder is None:
        return [Thumbnail(b"", NO_FOLDER)] * len(images)
    max_bytes = min(MAX_BYTES, MAX_TOTAL_BYTES // max(len(images), 1))
    bar = progress_bar(images, "report", len(images), disable=not progress)
    return [_read_thumbnail(Path(folder, image.file_name), image, max_bytes, exif_frame) for image in bar]


def _read_thumbnail(path: Path, image: CocoImage, max_bytes: int, exif_frame: ExifFrame) -> Thumbnail:
    try:
        pixels, _ = read_annotated_image(path, image.height, image.width, exif_frame)
    except DataError:
        return Thumbnail(b"", f"{image.file_name} is missing or cannot be read, so the people stand on a plain ground.")
    jpeg = encode_within(pixels, max_bytes)
    if not jpeg:
        return Thumbnail(b"", f"{image.file_name} does not fit into the report, even made small.")
    height, width = pixels.shape[:2]
    note = ""
    if (height, width) != (image.height, image.width):
        note = f"The file has {width} x {height} pixels, but the annotations say {image.width} x {image.height}."
    return Thumbnail(jpeg, note)


def encode_within(pixels: np.ndarray, max_bytes: int) -> bytes:
    """Encode an (H, W, 3) BGR image as the best JPEG of ``JPEG_SIZES`` within ``max_bytes``; empty if none fits."""
    height, width = pixels.shape[:2]
    for side, quality in JPEG_SIZES:
        factor = min(1.0, side / max(height, width))
        size = max(1, round(width * factor)), max(1, round(height * factor))
        small = pixels if factor == 1 else cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        parameters = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
        jpeg = cv2.imencode(".jpg", small, parameters)[1].tobytes()
        if len(jpeg) <= max_bytes:
            return jpeg
    return b""
