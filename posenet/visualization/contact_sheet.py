"""Contact sheets: labelled tiles in rows and columns, as one drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

BACKGROUND = (32, 32, 32)  # BGR
TEXT_COLOUR = (235, 235, 235)  # BGR
LABEL_HEIGHT = 24
"""Height in pixels of the strip above a tile that shows its label."""
GAP = 6
"""Pixels between tiles, and around them."""

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FONT_SCALE = 0.45
_BASELINE = LABEL_HEIGHT - 8
_MARGIN = 4


def label_tile(image: np.ndarray, label: str, size: tuple[int, int], note: str = "") -> np.ndarray:
    """Fit an image into a tile below a strip with a label on the left and a note on the right.

    The image keeps its aspect ratio and is centred. A label that is too long loses its beginning, which is the least
    important part of a path.

    Args:
        image: (H, W, 3) BGR uint8.
        size: (height, width) of the tile without the strip of ``LABEL_HEIGHT`` pixels.
    """
    height, width = size
    tile = np.full((height + LABEL_HEIGHT, width, 3), BACKGROUND, np.uint8)
    factor = min(height / image.shape[0], width / image.shape[1])
    image_height = max(1, round(image.shape[0] * factor))
    image_width = max(1, round(image.shape[1] * factor))
    top = LABEL_HEIGHT + (height - image_height) // 2
    left = (width - image_width) // 2
    tile[top : top + image_height, left : left + image_width] = cv2.resize(
        image, (image_width, image_height), interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    )
    label_width = width - _MARGIN
    if note:
        note_width = _text_width(note)
        draw_text(tile, note, (width - _MARGIN - note_width, _BASELINE))
        label_width -= note_width + 2 * _MARGIN
    draw_text(tile, _shorten(label, label_width), (_MARGIN, _BASELINE))
    return tile


def contact_sheet(tiles: Sequence[np.ndarray], columns: int, title: str = "") -> np.ndarray:
    """Arrange tiles of one size in rows of at most ``columns``, below a title if there is one; (H, W, 3) BGR uint8."""
    height, width = tiles[0].shape[:2]
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    title_height = LABEL_HEIGHT if title else 0
    sheet_size = title_height + GAP + rows * (height + GAP), GAP + columns * (width + GAP)
    sheet = np.full((*sheet_size, 3), BACKGROUND, np.uint8)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        top = title_height + GAP + row * (height + GAP)
        left = GAP + column * (width + GAP)
        sheet[top : top + height, left : left + width] = tile
    draw_text(sheet, _shorten(title, sheet.shape[1] - 2 * (GAP + _MARGIN)), (GAP + _MARGIN, GAP + _BASELINE))
    return sheet


def draw_text(image: np.ndarray, text: str, origin: tuple[int, int]) -> None:
    """Draw a line of text onto an image; ``origin`` is (x, y) of the left end of its baseline."""
    # OpenCV's fonts have only ASCII characters.
    printable = text.encode("ascii", "replace").decode()
    cv2.putText(image, printable, origin, _FONT, _FONT_SCALE, TEXT_COLOUR, 1, cv2.LINE_AA)


def _text_width(text: str) -> int:
    (width, _), _ = cv2.getTextSize(text, _FONT, _FONT_SCALE, 1)
    return width


def _shorten(text: str, max_width: int) -> str:
    """Cut the beginning of a text until it is at most ``max_width`` pixels wide."""
    if _text_width(text) <= max_width:
        return text
    while text and _text_width("..." + text) > max_width:
        text = text[1:]
    return "..." + text
