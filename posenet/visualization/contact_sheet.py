"""Labelled images side by side on one sheet."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

BACKGROUND = (32, 32, 32)
TEXT = (235, 235, 235)
STRIP = 24
"""Height of the strip that holds a label, in pixels."""
GAP = 6

_FONT, _SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.45


def tile(picture: np.ndarray, label: str, size: tuple[int, int], note: str = "") -> np.ndarray:
    """An image fitted into (height, width) ``size`` below a strip with a label on the left and a note on the right.

    Args:
        image: (H, W, 3) BGR uint8.

    Returns:
        (height + ``STRIP``, width, 3) BGR uint8.
    """
    rows, columns = size
    result = np.full((rows + STRIP, columns, 3), BACKGROUND, np.uint8)
    factor = min(rows / picture.shape[0], columns / picture.shape[1])
    height, width = (max(1, round(side * factor)) for side in picture.shape[:2])
    small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)
    top, left = STRIP + (rows - height) // 2, (columns - width) // 2
    result[top : top + height, left : left + width] = small
    room = columns - 4
    if note:
        room -= _width(note) + 8
        write(result, note, (columns - 4 - _width(note), STRIP - 8))
    write(result, _shortened(label, room), (4, STRIP - 8))
    return result


def sheet(tiles: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Tiles of one size in rows of ``columns``, as one (H, W, 3) BGR uint8 image."""
    height, width = tiles[0].shape[:2]
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    result = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), BACKGROUND, np.uint8)
    for i, one in enumerate(tiles):
        top, left = (GAP + cell * (side + GAP) for cell, side in zip(divmod(i, columns), (height, width)))
        result[top : top + height, left : left + width] = one
    return result


def write(picture: np.ndarray, text: str, place: tuple[int, int]) -> None:
    """Write a line of text; ``place`` is (x, y) of the left end of its base line."""
    # OpenCV's own letters are ASCII's.
    cv2.putText(picture, text.encode("ascii", "replace").decode(), place, _FONT, _SCALE, TEXT, 1, cv2.LINE_AA)


def _width(text: str) -> int:
    return cv2.getTextSize(text, _FONT, _SCALE, 1)[0][0]


def _shortened(text: str, room: int) -> str:
    """A text cut at its beginning, which of a path says least, so that it is at most ``room`` pixels wide."""
    if _width(text) <= room:
        return text
    while text and _width("..." + text) > room:
        text = text[1:]
    return "..." + text
