"""Decode image files, after a check of the size that they declare."""

from __future__ import annotations

import math
import struct

import cv2
import numpy as np

MAX_PIXELS = 2**28
"""The largest image that is decoded, 16384 x 16384. A file of a hundred bytes can declare 16 times as many pixels."""
JPEG_START = b"\xff\xd8"
"""The first bytes of a JPEG file."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header, which contains the height and the width."""
_MARKERS_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
_SCAN_MARKER = 0xDA
_COLOUR_FLAGS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
"""OpenCV's flag for each factor by which it can reduce an image."""


def declared_size(data: np.ndarray | bytes) -> tuple[int, int] | None:
    """(height, width) in the header of a JPEG (ITU-T T.81, annex B) or PNG file; None for other or damaged files."""
    view = memoryview(data if isinstance(data, bytes) else data.data)
    if bytes(view[:8]) == _PNG_START and len(view) >= 24:
        width, height = struct.unpack(">II", view[16:24])
        return height, width
    if bytes(view[:2]) == JPEG_START:
        return _jpeg_size(view)
    return None


def _jpeg_size(view: memoryview) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(view):
        marker = view[position + 1]
        if view[position] != 0xFF or marker in (0x00, 0xFF):
            position += 1  # not a marker: continue the search, as the decoder does
        elif marker in _FRAME_MARKERS:
            height, width = struct.unpack(">HH", view[position + 5 : position + 9])
            return height, width
        elif marker == _SCAN_MARKER:
            return None
        elif marker in _MARKERS_WITHOUT_LENGTH:
            position += 2
        else:
            length = int.from_bytes(view[position + 2 : position + 4], "big")
            position += 2 + max(2, length)
    return None


def decode_image(data: np.ndarray, *, upright: bool = True) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image file, grey, transparent and 16-bit ones too, to (H, W, 3) uint8 BGR.

    Args:
        upright: rotate the image by its EXIF orientation.

    Raises:
        ValueError: OpenCV cannot decode the bytes, or the file declares more than ``MAX_PIXELS``.
    """
    size = declared_size(data)
    if size is not None and math.prod(size) > MAX_PIXELS:
        raise ValueError(f"declares {size[1]} x {size[0]} pixels, more than any image")
    return _decode(data, cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)


def decode_annotated_image(data: np.ndarray, height: int, width: int, reduction: int = 1) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image of a known size to (H, W, 3) uint8 BGR.

    The EXIF orientation is ignored, as in COCO's annotations.

    Args:
        height, width: the annotated size.
        reduction: 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up.

    Raises:
        ValueError: the bytes cannot be decoded, or the image does not have the annotated size.
    """
    size = declared_size(data)
    if size is not None and size != (height, width):
        raise ValueError(f"is {size[1]} x {size[0]} pixels, annotated as {width} x {height}")
    if height * width > MAX_PIXELS:
        raise ValueError(f"is annotated as {width} x {height} pixels, larger than any image")
    image = _decode(data, _COLOUR_FLAGS[reduction] | cv2.IMREAD_IGNORE_ORIENTATION)
    found_height, found_width = image.shape[:2]
    if (found_height, found_width) != (-(-height // reduction), -(-width // reduction)):
        found = f"{found_width * reduction} x {found_height * reduction}"
        raise ValueError(f"is {found} pixels, annotated as {width} x {height}")
    return image


def _decode(data: np.ndarray, flags: int) -> np.ndarray:
    try:
        image = cv2.imdecode(data, flags) if len(data) else None
    except cv2.error as error:
        raise ValueError(f"cannot be decoded ({error.err or error})") from error
    if image is None:
        raise ValueError("cannot be decoded")
    return image
