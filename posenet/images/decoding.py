"""What an image file declares of itself, before any memory is taken for its pixels."""

from __future__ import annotations

import struct

import cv2
import numpy as np

MAX_PIXELS = 2**28
"""No image is larger: 16384 x 16384. A file of a hundred bytes can declare sixteen times as many."""
_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers that a frame's height and width follow."""
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
"""JPEG markers without a length."""
_SCAN = 0xDA


def declared_size(data: np.ndarray | bytes) -> tuple[int, int] | None:
    """(height, width) in the header of a JPEG (ITU-T T.81, annex B) or PNG file; None of other or damaged ones."""
    view = memoryview(data)
    if view[:8] == _PNG and len(view) >= 24:
        width, height = struct.unpack(">II", view[16:24])
        return height, width
    if view[:2] == b"\xff\xd8":
        return _jpeg_size(view)
    return None


def _jpeg_size(view: memoryview) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(view):
        if view[place] != 0xFF or view[place + 1] in (0x00, 0xFF):
            place += 1  # as the decoder does, look on for a marker
        elif (marker := view[place + 1]) in _FRAMES:
            return struct.unpack(">HH", view[place + 5 : place + 9])
        elif marker == _SCAN:
            return None
        else:
            place += 2 if marker in _BARE else 2 + max(2, int.from_bytes(view[place + 2 : place + 4], "big"))
    return None


JPEG_START = b"\xff\xd8"

FLAGS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def decode_image_bytes(data: np.ndarray, height: int, width: int, reduction: int = 1) -> np.ndarray:
    """(H, W, 3) BGR uint8 of an image file's bytes, EXIF orientation ignored as in COCO's annotations.

    Args:
        reduction: 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up.

    Raises:
        ValueError: OpenCV cannot decode the bytes, or the image is not ``height`` by ``width`` pixels.
    """
    if (size := declared_size(data)) not in (None, (height, width)):
        raise ValueError(f"is {size[1]} x {size[0]} pixels, annotated as {width} x {height}")
    if height * width > MAX_PIXELS:
        raise ValueError(f"is annotated as {width} x {height} pixels, larger than any image")
    try:
        image = cv2.imdecode(data, FLAGS[reduction] | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:  # no bytes, or an image beyond OpenCV's limits
        image = None
    if image is None:
        raise ValueError("cannot be decoded")
    if image.shape[:2] != (-(-height // reduction), -(-width // reduction)):
        raise ValueError(
            f"is {image.shape[1] * reduction} x {image.shape[0] * reduction} pixels, annotated as {width} x {height}"
        )
    return image
