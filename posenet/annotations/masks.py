"""Where people are in an image, and where the loss is to supervise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_file import PersonAnnotation


def masks(people: Sequence[PersonAnnotation], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Person mask and supervision mask of one image.

    Where an ignored region (a crowd, a person without labelled keypoints) overlaps the outline of a labelled
    person, the labelled person wins and the pixel is supervised: its keypoints are known, and a crowd's outline
    is drawn coarsely, often over the annotated people in it. A person without a usable outline counts with the box.

    Returns:
        ``mask_all`` (H, W) uint8: 1 on any person, crowds included. ``mask_miss`` (H, W) uint8: 0 on people
        without labelled keypoints and on crowds, 1 elsewhere. Both lie column by column, as run lengths go.
    """
    labelled = _cover([person for person in people if person.labelled], height, width)
    others = [person for person in people if not person.labelled]
    if not others:
        return labelled, np.ones_like(labelled)
    ignored = _cover(others, height, width)
    return labelled | ignored, 1 - (ignored & ~labelled)


def _cover(people: Sequence[PersonAnnotation], height: int, width: int) -> np.ndarray:
    """(H, W) uint8: 1 on any of ``people``; it lies column by column."""
    cover = np.zeros((width, height), np.uint8).T
    polygons: list[list[float]] = []
    for person in people:
        if isinstance(person.segmentation, np.ndarray):
            cover |= rle.columns(person.segmentation, height, width).T
        else:
            polygons += person.segmentation or [_rectangle(person.box, height, width)]
    if polygons:
        cover |= rle.polygons_to_mask(polygons, height, width)
    return cover


def _rectangle(box: np.ndarray, height: int, width: int) -> list[float]:
    """Polygon of the pixels that a box touches; its corners lie on pixel borders, as COCO's boxes do."""
    x, y, w, h = box.tolist()
    left, right = (min(max(edge, 0), width) for edge in (math.floor(x), math.ceil(x + w)))
    top, bottom = (min(max(edge, 0), height) for edge in (math.floor(y), math.ceil(y + h)))
    return [left, top, right, top, right, bottom, left, bottom]
