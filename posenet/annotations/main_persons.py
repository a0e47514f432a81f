"""Select the people of an image that training samples are centred on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from posenet.annotations.coco_dataset import PersonAnnotation
from posenet.skeleton import COCO

MIN_AREA = 32 * 32
"""Smallest area of a main person in square pixels."""
MIN_DISTANCE = 0.3
"""Smallest distance between main persons, relative to the longer box side of the earlier one."""


def select_main_persons(
    people: Sequence[PersonAnnotation], min_labelled: int = COCO.min_labelled_keypoints
) -> list[int]:
    """Select one image's main persons, on each of whom a training sample is centred; return their indices in order.

    A main person

    - is not a crowd,
    - has at least ``min_labelled`` labelled keypoints (``Skeleton.min_labelled_keypoints``),
    - has an area of at least 32 x 32 pixels and a box of at least 1 x 1,
    - has a box centre farther from that of *every earlier* main person than 0.3 times the longer side of the earlier
      box. "Earlier" means file order, so that the selection depends only on the file.
    """
    selected: list[int] = []
    for index, person in enumerate(people):
        if person.crowd or person.num_labelled < min_labelled or person.area < MIN_AREA or min(person.box[2:]) < 1:
            continue
        if all(_is_apart(people[earlier].box, person.box) for earlier in selected):
            selected.append(index)
    return selected


def _is_apart(earlier: np.ndarray, later: np.ndarray) -> bool:
    """Whether the centres of two boxes are farther apart than 0.3 times the longer side of the earlier one."""
    distance = math.dist(earlier[:2] + earlier[2:] / 2, later[:2] + later[2:] / 2)
    return distance > MIN_DISTANCE * float(max(earlier[2:]))
