"""What training samples need of the people of an image: its main persons, on whom they are centred, and its masks."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from posenet.annotations.outlines import decode_columns, polygons_to_mask
from posenet.annotations.people import People
from posenet.skeleton import COCO

MIN_AREA = 8 * 8
"""Smallest area of a main person in square pixels. Training enlarges main persons to a share of the network's input, so
that they are blurry and not small; one with fewer pixels than keypoints would show nothing. COCO labels the keypoints
of nobody below 32 x 32 pixels, the limit of the paper, so that its samples are the same."""
CLEAR_AREA = 32 * 32
"""An image is not made so small that a main person has fewer square pixels, or any fewer if it has no more."""
MIN_DISTANCE = 0.3
"""Smallest distance between main persons, relative to the longer box side of the earlier one."""


def _are_large(people: People) -> np.ndarray:
    return np.asarray((people.areas >= MIN_AREA) & (people.boxes[:, 2:] >= 1).all(axis=1))


def select_main_persons(people: People, min_labelled: int = COCO.min_labelled_keypoints) -> list[int]:
    """Select one image's main persons, on each of whom a training sample is centred; return their rows in order.

    A main person

    - is not a crowd,
    - has at least ``min_labelled`` labelled keypoints (``Skeleton.min_labelled_keypoints``),
    - has an area of at least 8 x 8 pixels and a box of at least 1 x 1,
    - has a box centre farther from that of *every earlier* main person than 0.3 times the longer side of the earlier
      box. "Earlier" means file order, so that the selection depends only on the file.
    """
    candidates = np.flatnonzero(~people.is_crowd & (people.num_labelled >= min_labelled) & _are_large(people))
    centres = (people.boxes[:, :2] + people.boxes[:, 2:] / 2).tolist()
    distances = [MIN_DISTANCE * longer_side for longer_side in people.boxes[:, 2:].max(axis=1).tolist()]
    selected: list[int] = []
    for row in candidates.tolist():
        if all(math.dist(centres[earlier], centres[row]) > distances[earlier] for earlier in selected):
            selected.append(row)
    return selected


def count_others(people: People, min_labelled: int = COCO.min_labelled_keypoints) -> Counter[str]:
    """How many people of one image no sample is centred on, by reason; crowds are not counted."""
    reasons = {
        "without labelled keypoints": people.num_labelled == 0,
        f"with fewer than {min_labelled} labelled keypoints": people.num_labelled < min_labelled,
        "smaller than 8 x 8 pixels": ~_are_large(people),
        "too close to another one": np.ones(len(people), bool),
    }
    is_open = ~people.is_crowd
    is_open[select_main_persons(people, min_labelled)] = False
    counts: Counter[str] = Counter()
    for reason, has_it in reasons.items():
        counts[reason] += int((is_open & has_it).sum())
        is_open &= ~has_it
    return +counts


def describe_others(counts: Counter[str]) -> str:
    """The counts of ``count_others`` in a few words: "3 smaller than 8 x 8 pixels, 1 too close to another one"."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def person_masks(people: People, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the person mask and the supervision mask of one image.

    Crowds and people without labelled keypoints are ignored regions. Pixels of labelled people are supervised even
    inside an ignored region: their keypoints are known, and crowd outlines are coarse and often cover annotated people.
    The box replaces a missing or unusable outline.

    Returns:
        ``person_mask`` (H, W) uint8: 1 on any person, crowds included. ``mask_miss`` (H, W) uint8: 0 on ignored
        regions, 1 elsewhere. Both are Fortran-contiguous, the order of run lengths.
    """
    is_labelled = people.is_labelled
    labelled = _union_mask(people, np.flatnonzero(is_labelled), height, width)
    if is_labelled.all():
        return labelled, np.ones_like(labelled)
    ignored = _union_mask(people, np.flatnonzero(~is_labelled), height, width)
    return labelled | ignored, 1 - (ignored & ~labelled)


def _union_mask(people: People, rows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W) uint8, Fortran-contiguous: 1 on any of the people in some rows."""
    mask = np.zeros((width, height), np.uint8).T
    polygons: list[list[float]] = []
    for row in rows.tolist():
        outline = people.outlines[row]
        if isinstance(outline, np.ndarray):
            mask |= decode_columns(outline, height, width).T
        elif outline:
            polygons += outline
        else:
            polygons.append(_box_polygon(people.boxes[row], height, width))
    if polygons:
        mask |= polygons_to_mask(polygons, height, width)
    return mask


def _box_polygon(box: np.ndarray, height: int, width: int) -> list[float]:
    """Polygon of the pixels that a box touches. Its corners are corners of pixels, as in COCO's frame."""
    x, y, box_width, box_height = box.tolist()
    left, right = np.clip((math.floor(x), math.ceil(x + box_width)), 0, width).tolist()
    top, bottom = np.clip((math.floor(y), math.ceil(y + box_height)), 0, height).tolist()
    return [left, top, right, top, right, bottom, left, bottom]
