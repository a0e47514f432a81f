"""Small copies of images as JPEG; the more there are, the smaller they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2

from posenet.annotations.coco import CocoImage
from posenet.errors import DataError
from posenet.images import read_image
from posenet.progress_bar import progress_bar

FEW_IMAGES = 100
FEW_SIDE, MANY_SIDE = 640, 400
"""Longer side in pixels of up to ``FEW_IMAGES`` and of more images, so that a page of 400 images has about 20 MB."""
JPEG_QUALITY = 75
NO_FOLDER = "The report was written without the images (--images), so the keypoints stand on a plain ground."


class Thumbnail(NamedTuple):
    """A JPEG, or a note that says why there is none."""

    jpeg: bytes
    note: str


def read_thumbnails(
    images: Sequence[CocoImage], folder: str | Path | None, *, progress: bool = True
) -> list[Thumbnail]:
    """Read images, and make them small."""
    if folder is None:
        return [Thumbnail(b"", NO_FOLDER)] * len(images)
    side = FEW_SIDE if len(images) <= FEW_IMAGES else MANY_SIDE
    bar = progress_bar(images, "report", len(images), disable=not progress)
    return [_read_thumbnail(Path(folder, image.file_name), image, side) for image in bar]


def _read_thumbnail(path: Path, image: CocoImage, side: int) -> Thumbnail:
    try:
        pixels = read_image(path)
    except DataError:
        note = f"{image.file_name} is missing or cannot be read, so the keypoints stand on a plain ground."
        return Thumbnail(b"", note)
    height, width = pixels.shape[:2]
    note = ""
    if (height, width) != (image.height, image.width):
        note = f"The file has {width} x {height} pixels, but the annotations say {image.width} x {image.height}."
    factor = min(1.0, side / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    _, jpeg = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1])
    return Thumbnail(jpeg.tobytes(), note)
