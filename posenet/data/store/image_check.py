"""Reads image files and checks, as cheaply as possible, that they decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.images.decoding import JPEG_START, add_jpeg_end, declared_size, decode_annotated_image


def read_image_bytes(path: Path, height: int, width: int) -> np.ndarray:
    """Read an image file as (bytes,) uint8; ``OSError`` or ``ValueError`` unless it decodes to the annotated size."""
    data = path.read_bytes()
    last_scan = data.rfind(b"\xff\xda")
    last_end = data.rfind(b"\xff\xd9")
    if data.startswith(JPEG_START) and last_end < last_scan:
        # Some releases of OpenCV fill the missing rows with grey and report no error.
        add_jpeg_end(np.frombuffer(data, np.uint8))
    image_bytes = np.frombuffer(data, np.uint8)
    decode_annotated_image(image_bytes, height, width, reduction_for_check(image_bytes, height, width))
    return image_bytes


def reduction_for_check(image_bytes: np.ndarray, height: int, width: int) -> int:
    """The reduction at which to decode an image only to check that it decodes.

    Decoding a JPEG at an eighth of its size also reads all of its data, in three quarters of the time. The size of the
    result cannot distinguish 640 pixels from 639, so the header must declare the annotated size.
    """
    is_jpeg = image_bytes[:2].tobytes() == JPEG_START
    return 8 if is_jpeg and declared_size(image_bytes) == (height, width) else 1
