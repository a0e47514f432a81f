"""How the results depend on the people: by size and by crowding."""

from __future__ import annotations

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


class Slice(NamedTuple):
    """People with something in common, such as a size."""

    name: str  # such as ``medium`` or ``1-2``
    people: int  # number of labelled people
    ap: float  # AP of these people; -1 if there are none
    counts: dict[str, int]  # number of keypoints of each kind in these people's matched results
    missed: int  # how many of these people no result matches at OKS 0.5


class Groups(NamedTuple):
    """The groups of one dimension, and to which of them each of G annotations belongs."""

    names: Sequence[str]
    number: np.ndarray  # (G,) index into ``names``


def group_people(truth: Truth) -> dict[str, Groups]:
    """Group the annotations by what the results may depend on.

    Crowding is the number of other people whose boxes overlap with that of the person.
    """
    medium = SIZES["medium"]
    return {
        "size": Groups(list(SIZES), (truth.areas >= medium[0]).astype(int) + (truth.areas > medium[1])),
        "crowding": Groups(["0", "1-2", "3 or more"], np.searchsorted([0, 2], _count_overlaps(truth))),
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
