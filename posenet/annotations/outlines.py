"""Outlines of objects: polygons and masks as run lengths; and the masks, boxes and areas that follow from them.

Run lengths count the pixels of a mask down the columns, left to right. The runs alternate between background and
mask; the first one is background and may be 0 pixels long.

**In a store** every run is a 16-bit little-endian number, so that reading needs no decoding. A run longer than
``MAX_STORED_RUN`` is split: 65535, then a run of 0 pixels, then the rest.

**COCO's compressed text** is a quarter smaller and takes ninety times as long to read. Each run is a sequence of
characters. Each character is 48 plus a 6-bit group: bits 0-4 are the next five bits of the number, the lowest first;
bit 5 means that another group follows. Bit 4 of the last group is the sign. From the fourth number on, each is
stored as the difference from the number two positions earlier. The text is read here and not by pycocotools, which
trusts its input and reads past its buffers on damaged text.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

Outline = list[list[float]] | np.ndarray | None
"""Polygons, flat lists x, y, x, y, ...; or (runs,) run lengths; or None: the box takes its place."""

MAX_STORED_RUN = 2**16 - 1
"""The largest 16-bit number."""
MAX_MASK_SIDE = 65535
"""Largest height and width of an image, and largest coordinate of an outline. A JPEG cannot be larger."""
MAX_OUTLINE = 2e6
"""Largest perimeter of a polygon in pixels, as the sum of the distances along both axes."""
SHARE_OF_BOX = 0.53
"""Area of a person relative to the box: the median of 757 people of COCO, half of whom have 0.45 to 0.62. An evaluation
whose areas are whole boxes measures an AP that is 8 to 23 points too high."""
SHARE_OF_KEYPOINT_BOX = 0.84
"""The same relative to the box around four and more labelled keypoints, which is smaller: the median of 454 people."""
BOX_TOLERANCE = 1.0
"""Difference in pixels at which a box is the one around the keypoints, because both may be rounded."""
EDGE_MARGIN = 1.0
"""Pixels by which coordinates are outside the image because they are rounded."""


def parse_outline(outline: Any, height: int, width: int) -> tuple[Outline, bool]:
    """Parse a ``segmentation``; also return whether something in it cannot be used: it is damaged, or its size is that
    of another image."""
    if not outline:
        return None, False
    if isinstance(outline, list):
        polygons = [polygon for polygon in outline if _is_polygon(polygon)]
        return polygons or None, len(polygons) < len(outline)
    if not isinstance(outline, dict) or outline.get("size") != [height, width]:
        return None, True
    counts = outline.get("counts")
    try:
        if isinstance(counts, str):
            runs = parse_coco_text(counts.encode())
        elif isinstance(counts, list) and set(map(type, counts)) <= {int}:
            runs = np.array(counts, np.int64)
        else:
            return None, True
    except (ValueError, OverflowError):
        return None, True
    size = height * width
    fills_image = len(runs) > 0 and runs.min() >= 0 and runs.max() <= size and runs.sum() == size
    return (runs, False) if fills_image else (None, True)


def _is_polygon(polygon: Any) -> bool:
    """Whether a list can be rasterised."""
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or set(map(type, polygon)) - {int, float}:
        return False
    # Rasterising samples every edge: huge coordinates or long zigzags would need gigabytes of memory.
    low, high = min(polygon), max(polygon)
    if not (low >= -MAX_MASK_SIDE and high <= MAX_MASK_SIDE and math.isfinite(sum(polygon))):
        return False
    if len(polygon) * (high - low) <= MAX_OUTLINE:  # no edge is longer than high - low on either axis
        return True
    corners = np.array(polygon).reshape(-1, 2)
    return bool(np.abs(corners - np.roll(corners, 1, axis=0)).sum() <= MAX_OUTLINE)


def encode_mask(mask: np.ndarray) -> np.ndarray:
    """(runs,) uint16: the stored run lengths of an (H, W) uint8 mask of 0 and 1."""
    flat = mask.ravel(order="F")
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]) + 1, len(flat))
    runs = np.diff(ends, prepend=[0, 0] if flat[0] else [0])
    if runs.max() <= MAX_STORED_RUN:
        return runs.astype("<u2")
    full = runs // MAX_STORED_RUN  # the number of times that each run contains 65535
    stored = np.zeros(len(runs) + 2 * full.sum(), "<u2")
    ends = np.arange(len(runs)) + 2 * full.cumsum()
    stored[ends] = runs - full * MAX_STORED_RUN
    for i in np.flatnonzero(full):
        stored[ends[i] - 2 * full[i] : ends[i] : 2] = MAX_STORED_RUN
    return stored


def parse_coco_text(text: bytes) -> np.ndarray:
    """(runs,) int64 of COCO's compressed text; ``ValueError`` if the text is damaged."""
    runs: list[int] = []
    number = shift = 0
    for group in (byte - 48 for byte in text):
        if not 0 <= group < 64 or shift > 35:  # 40 bits are more than any image has pixels
            raise ValueError("damaged run lengths")
        number |= (group & 31) << shift
        shift += 5
        if group < 32:
            number -= (group >> 4) << shift
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = shift = 0
    if shift or not runs:
        raise ValueError("damaged run lengths")
    return np.array(runs, np.int64)


def decode_columns(runs: np.ndarray, height: int, width: int, value: int = 1) -> np.ndarray:
    """Decode valid run lengths to the transposed mask, (W, H) uint8: ``value`` on the mask, 0 elsewhere.

    This form is the fastest, because runs go down the columns.
    """
    values = np.zeros(len(runs), np.uint8)
    values[1::2] = value
    return np.repeat(values, runs).reshape(width, height)


def decode_mask(runs: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W) uint8 mask, C-contiguous, of valid run lengths."""
    return np.ascontiguousarray(decode_columns(runs, height, width).T)


def polygons_to_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Rasterise flat lists x, y, x, y, ... as COCO does, to (H, W) uint8, Fortran-contiguous: 1 in any polygon."""
    return np.asarray(coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(list(polygons), height, width))))


def boxes_around(points: np.ndarray, is_labelled: np.ndarray) -> np.ndarray:
    """(P, 4) x, y, width, height around the labelled ones of (P, K, 2) points; zeros if the width or height is 0."""
    low = points.min(axis=1, where=is_labelled[..., None], initial=np.inf)
    sides = points.max(axis=1, where=is_labelled[..., None], initial=-np.inf) - low
    boxes: np.ndarray = np.where((sides > 0).all(axis=1, keepdims=True), np.hstack([low, sides]), 0)
    return boxes


def estimate_areas(boxes: np.ndarray, around: np.ndarray) -> np.ndarray:
    """(P,) areas in square pixels of people without outlines, from their boxes and those ``around`` their keypoints."""
    are_same = (abs(boxes - around) <= BOX_TOLERANCE).all(axis=1)
    return np.asarray(np.where(are_same, SHARE_OF_KEYPOINT_BOX, SHARE_OF_BOX) * boxes[:, 2] * boxes[:, 3])


def distances_from_boxes(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(P, K) distance of points from their box along the farther axis, relative to its longer side."""
    low, size = boxes[:, None, :2], boxes[:, None, 2:]
    beyond = np.maximum(low - points, points - low - size).max(axis=2).clip(min=0)
    return np.asarray(beyond / size.max(axis=2).clip(min=1))
