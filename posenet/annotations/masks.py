"""Masks of an image: the pixels of people, and the pixels that the loss supervises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from posenet.annotations.coco_dataset import PersonAnnotation
from posenet.annotations.run_lengths import decode_columns, polygons_to_mask


def person_masks(people: Sequence[PersonAnnotation], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the person mask and the supervision mask of one image.

    Crowds and people without labelled keypoints are ignored regions. Pixels of labelled people are supervised even
    inside an ignored region: their keypoints are known, and crowd outlines are coarse and often cover annotated people.
    The box replaces a missing or unusable outline.

    Returns:
        ``mask_all`` (H, W) uint8: 1 on any person, crowds included. ``mask_miss`` (H, W) uint8: 0 on ignored regions,
        1 elsewhere. Both are Fortran-contiguous, the order of run lengths.
    """
    labelled = _union_mask([person for person in people if person.labelled], height, width)
    unlabelled = [person for person in people if not person.labelled]
    if not unlabelled:
        return labelled, np.ones_like(labelled)
    ignored = _union_mask(unlabelled, height, width)
    return labelled | ignored, 1 - (ignored & ~labelled)


def _union_mask(people: Sequence[PersonAnnotation], height: int, width: int) -> np.ndarray:
    """(H, W) uint8, Fortran-contiguous: 1 on any of ``people``."""
    mask = np.zeros((width, height), np.uint8).T
    polygons: list[list[float]] = []
    for person in people:
        if isinstance(person.segmentation, np.ndarray):
            mask |= decode_columns(person.segmentation, height, width).T
        elif person.segmentation:
            polygons += person.segmentation
        else:
            polygons.append(_box_polygon(person.box, height, width))
    if polygons:
        mask |= polygons_to_mask(polygons, height, width)
    return mask


def _box_polygon(box: np.ndarray, height: int, width: int) -> list[float]:
    """Polygon of the pixels that a box touches. Its corners are corners of pixels, as in COCO's frame."""
    x, y, box_width, box_height = box.tolist()
    left, right = np.clip((math.floor(x), math.ceil(x + box_width)), 0, width).tolist()
    top, bottom = np.clip((math.floor(y), math.ceil(y + box_height)), 0, height).tolist()
    return [left, top, right, top, right, bottom, left, bottom]
