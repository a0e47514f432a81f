"""Reads image files and checks, as cheaply as possible, that they decode."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.images.decoding import add_jpeg_end, decode_annotated_image
from posenet.images.headers import JPEG_START, declared_size
from posenet.images.orientation import AnnotatedFrame, find_annotated_frame, oriented_size
from posenet.settings import ExifFrame


class CheckedImage(NamedTuple):
    """An image file that decodes to the annotated size."""

    image_bytes: np.ndarray
    """(bytes,) uint8."""
    frame: AnnotatedFrame


def read_checked_image(path: Path, height: int, width: int, exif_frame: ExifFrame) -> CheckedImage:
    """Read an image file; ``OSError`` or ``ValueError`` unless it decodes to the annotated size."""
    data = path.read_bytes()
    last_scan = data.rfind(b"\xff\xda")
    last_end = data.rfind(b"\xff\xd9")
    if data.startswith(JPEG_START) and last_end < last_scan:
        # Some releases of OpenCV fill the missing rows with grey and report no error.
        add_jpeg_end(np.frombuffer(data, np.uint8))
    image_bytes = np.frombuffer(data, np.uint8)
    frame = find_annotated_frame(image_bytes, height, width, exif_frame)
    reduction = reduction_for_check(image_bytes, height, width, frame.orientation)
    decode_annotated_image(image_bytes, height, width, reduction, frame.orientation)
    return CheckedImage(image_bytes, frame)


def reduction_for_check(image_bytes: np.ndarray, height: int, width: int, orientation: int) -> int:
    """The reduction at which to decode an image only to check that it decodes.

    Decoding a JPEG at an eighth of its size also reads all of its data, in three quarters of the time. The size of the
    result cannot distinguish 640 pixels from 639, so the header must declare the annotated size.
    """
    is_jpeg = image_bytes[:2].tobytes() == JPEG_START
    return 8 if is_jpeg and declared_size(image_bytes) == oriented_size(height, width, orientation) else 1
