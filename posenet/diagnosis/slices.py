"""How the results depend on the people: by size, labelled keypoints, crowding, truncation and occlusion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from posenet.diagnosis.average_precision import Outcome, average_precision, evaluate
from posenet.diagnosis.error_kinds import MATCH_OKS, SIZES
from posenet.diagnosis.keypoint_errors import MatchedResults, count_kinds
from posenet.diagnosis.matching import Truth, select_rows, split_groups

CROWDING_IOU = 0.1
"""People whose boxes overlap more than this crowd each other."""
BORDER = 1.0
"""A box that ends within this many pixels of the border of the image touches it."""


class Slice(NamedTuple):
    """People with something in common, such as a size."""

    name: str  # such as ``medium``, ``1-2`` or ``truncated``
    people: int  # number of labelled people
    ap: float  # AP of these people; -1 if there are none
    counts: dict[str, int]  # number of keypoints of each kind in these people's matched results
    missed: int  # how many of these people no result matches at OKS 0.5


class Groups(NamedTuple):
    """The groups of one dimension, and to which of them each of G annotations belongs."""

    names: Sequence[str]
    number: np.ndarray  # (G,) index into ``names``


def group_people(truth: Truth, image_sizes: np.ndarray) -> dict[str, Groups]:
    """Group the annotations by what the results may depend on.

    Crowding is the number of other people whose boxes overlap with that of the person. People are truncated if their
    box or a labelled keypoint touches or leaves the border of the image. Occlusion is the share of hidden keypoints
    among the labelled ones.

    Args:
        image_sizes: (images, 2) width and height of every image.
    """
    num_keypoints = truth.labelled.shape[1]
    few = math.ceil(num_keypoints * 5 / 17)  # COCO: 1-5, 6-10, 11-15 and 16-17 labelled keypoints
    ranges = [(first, min(first + few - 1, num_keypoints)) for first in range(1, num_keypoints + 1, few)]
    labelled = truth.labelled.sum(axis=1)
    limits = image_sizes[truth.image].astype(float)  # (G, 2)
    corner, xy = truth.boxes[:, :2], truth.keypoints[..., :2]
    box_truncated = (corner <= BORDER) | (corner + truth.boxes[:, 2:] >= limits - BORDER)
    keypoint_truncated = ((xy <= 0) | (xy >= limits[:, None] - 1)).any(axis=2) & truth.labelled
    hidden = (truth.labelled & (truth.keypoints[..., 2] < 2)).sum(axis=1) / np.maximum(labelled, 1)
    medium = SIZES["medium"]
    return {
        "size": Groups(list(SIZES), (truth.areas >= medium[0]).astype(int) + (truth.areas > medium[1])),
        "labelled keypoints": Groups(
            [str(first) if first == last else f"{first}-{last}" for first, last in ranges], (labelled - 1) // few
        ),
        "crowding": Groups(["0", "1-2", "3 or more"], np.searchsorted([0, 2], _count_overlaps(truth))),
        "truncation": Groups(
            ["inside", "truncated"], (box_truncated.any(axis=1) | keypoint_truncated.any(axis=1)).astype(int)
        ),
        "occlusion": Groups(
            ["none hidden", "up to 25 %", "25 to 50 %", "over 50 %"], np.searchsorted([0, 0.25, 0.5], hidden)
        ),
    }


def measure_slices(
    matched: MatchedResults, missed: np.ndarray, by_size: Mapping[str, Outcome], groups: Mapping[str, Groups]
) -> dict[str, list[Slice]]:
    """Evaluate the people of every group.

    The AP of a slice is COCO's, with all other people ignored as COCO ignores people of another size. A result that
    matches nobody counts against the slice of the person whom it resembles most, or not at all if its OKS with
    everybody is below 0.1. For the sizes, the area of the result decides, as in COCO's APM and APL.

    Args:
        missed: (G,) bool: people whom no result matches at OKS 0.5.
        by_size: outcome of the people of each size. Sizes of which there is nobody are left out.
    """
    nearest, oks = matched.nearest()
    nearest = np.where(oks >= MATCH_OKS, nearest, -1)
    slices: dict[str, list[Slice]] = {dimension: [] for dimension in groups}
    for dimension, (names, numbers) in groups.items():
        for number, name in enumerate(names):
            people = (numbers == number) & matched.truth.people
            if dimension != "size":
                outcome = evaluate(matched, people, free=~select_rows(people, nearest))
            elif people.any():
                outcome = by_size[name]
            else:
                continue
            part = Slice(
                name=name,
                people=int(people.sum()),
                ap=average_precision(outcome.precision()),
                counts=count_kinds(matched.kinds[select_rows(people, matched.person)]),
                missed=int((missed & people).sum()),
            )
            slices[dimension].append(part)
    return slices


def _count_overlaps(truth: Truth) -> np.ndarray:
    counts = np.zeros(len(truth), int)
    people = np.flatnonzero(~truth.crowd)
    for rows in split_groups(people, truth.image[people]):
        boxes = truth.boxes[rows]
        overlaps = coco_mask.iou(boxes, boxes, [0] * len(rows)) > CROWDING_IOU
        np.fill_diagonal(overlaps, False)  # a person does not crowd itself
        counts[rows] = overlaps.sum(axis=1)
    return counts
