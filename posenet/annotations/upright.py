"""The EXIF frame of annotations: those of the stored pixels are turned to the image as displayed, as it is read."""

from __future__ import annotations

import numpy as np

from posenet.annotations.coco import People
from posenet.annotations.outlines import Outline, decode_mask, encode_mask
from posenet.images import ImageHeader, apply_orientation, has_proportions
from posenet.settings import ExifFrame

MIRRORING = (2, 4, 5, 7)
"""Orientations that mirror: what is annotated as left in the stored pixels is right in the displayed image."""


def find_frame(header: ImageHeader, size: tuple[int, int], exif_frame: ExifFrame) -> tuple[ExifFrame, bool]:
    """The frame of an image that is annotated as (height, width) ``size``, and whether ``exif_frame`` decides it.

    Orientations 5 to 8 swap height and width, and then the size tells, or the proportions of an image that was resized.
    For others, for square images and for proportions of neither frame, ``exif_frame`` decides.
    """
    stored, displayed = header.stored_size, header.displayed_size
    if stored != displayed and size in (stored, displayed):
        return ("stored" if size == stored else "displayed"), False
    if has_proportions(stored, size) != has_proportions(displayed, size):
        return ("stored" if has_proportions(stored, size) else "displayed"), False
    return exif_frame, True


def turn_people(people: People, rows: np.ndarray, orientation: int, size: tuple[int, int]) -> None:
    """Turn some rows, in place, from the stored pixels of (height, width) ``size`` by the orientation 3, 6 or 8."""
    keypoints, boxes = people.keypoints[rows], people.boxes[rows]
    # Keypoints count from the centre of the first pixel, boxes and outlines from its corner.
    points = _turn(keypoints[..., :2] + 0.5, orientation, size) - 0.5
    keypoints[..., :2] = np.where(keypoints[..., 2:] > 0, points, keypoints[..., :2])
    corners = [_turn(corner, orientation, size) for corner in (boxes[:, :2], boxes[:, :2] + boxes[:, 2:])]
    people.keypoints[rows] = keypoints
    people.boxes[rows] = np.hstack([np.minimum(*corners), np.abs(corners[1] - corners[0])])
    for row in rows.tolist():
        outline = _turn_outline(people.outlines[row], orientation, size)
        people.outlines[row] = outline
        if isinstance(outline, np.ndarray):  # which is written as it is in the entry
            turned_size = [*size[::-1]] if orientation >= 5 else [*size]
            rle = {"size": turned_size, "counts": outline.tolist()}
            people.entries[row] = people.entries[row] | {"segmentation": rle}


def _turn(points: np.ndarray, orientation: int, size: tuple[int, int]) -> np.ndarray:
    """(..., 2) x, y in pixels from the corner of the image."""
    height, width = size
    x, y = points[..., 0], points[..., 1]
    turned = {3: (width - x, height - y), 6: (height - y, x), 8: (y, width - x)}[orientation]
    return np.stack(turned, axis=-1)


def _turn_outline(outline: Outline, orientation: int, size: tuple[int, int]) -> Outline:
    if isinstance(outline, np.ndarray):
        return encode_mask(apply_orientation(decode_mask(outline, *size), orientation))
    if outline is None:
        return None
    return [_turn(np.reshape(polygon, (-1, 2)), orientation, size).ravel().tolist() for polygon in outline]
