"""How the results depend on the people: by size, labelled keypoints, crowding, truncation and occlusion."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from posenet.diagnosis.average_precision import average_precision, evaluate, evaluate_area
from posenet.diagnosis.error_kinds import MATCH_OKS, SIZES
from posenet.diagnosis.keypoint_errors import MatchedResults, count_kinds
from posenet.diagnosis.matching import Truth, select_rows, split_groups

CROWDING = ("0", "1-2", "3 or more")
"""Groups of people by the number of other people who crowd them."""
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


class Attributes(NamedTuple):
    """What the results may depend on, for each of G annotations."""

    size: np.ndarray  # (G,) index into ``SIZES``
    labelled: np.ndarray  # (G,) number of labelled keypoints
    crowding: np.ndarray  # (G,) number of other people whose boxes overlap with this one, crowd regions excluded
    truncated: np.ndarray  # (G,) bool: whether the box or a labelled keypoint touches or leaves the border of the image
    hidden: np.ndarray  # (G,) share of hidden keypoints among the labelled ones, 0-1

    @classmethod
    def of(cls, truth: Truth, image_sizes: np.ndarray) -> Attributes:
        """``image_sizes`` is (images, 2): width and height of every image."""
        labelled = truth.labelled.sum(axis=1)
        limits = image_sizes[truth.image].astype(float)  # (G, 2)
        corner, xy = truth.boxes[:, :2], truth.keypoints[..., :2]
        box_truncated = (corner <= BORDER) | (corner + truth.boxes[:, 2:] >= limits - BORDER)
        keypoint_truncated = ((xy <= 0) | (xy >= limits[:, None] - 1)).any(axis=2) & truth.labelled
        is_hidden = truth.labelled & (truth.keypoints[..., 2] < 2)
        medium = SIZES["medium"]
        return cls(
            size=(truth.areas >= medium[0]).astype(int) + (truth.areas > medium[1]),
            labelled=labelled,
            crowding=_count_overlaps(truth),
            truncated=box_truncated.any(axis=1) | keypoint_truncated.any(axis=1),
            hidden=is_hidden.sum(axis=1) / np.maximum(labelled, 1),
        )

    @property
    def crowding_group(self) -> np.ndarray:
        """(G,) index into ``CROWDING``."""
        return np.asarray((self.crowding > 0).astype(int) + (self.crowding > 2))

    def groups(self, num_keypoints: int) -> dict[str, dict[str, np.ndarray]]:
        """The (G,) members of every slice of every dimension."""
        few = math.ceil(num_keypoints * 5 / 17)  # COCO: 1-5, 6-10, 11-15 and 16-17 labelled keypoints
        ranges = [(first, min(first + few - 1, num_keypoints)) for first in range(1, num_keypoints + 1, few)]
        return {
            "size": {name: self.size == index for index, name in enumerate(SIZES)},
            "labelled keypoints": {
                str(first) if first == last else f"{first}-{last}": (self.labelled >= first) & (self.labelled <= last)
                for first, last in ranges
            },
            "crowding": {name: self.crowding_group == index for index, name in enumerate(CROWDING)},
            "truncation": {"inside": ~self.truncated, "truncated": self.truncated},
            "occlusion": {
                "none hidden": self.hidden == 0,
                "up to 25 %": (self.hidden > 0) & (self.hidden <= 0.25),
                "25 to 50 %": (self.hidden > 0.25) & (self.hidden <= 0.5),
                "over 50 %": self.hidden > 0.5,
            },
        }


def measure_slices(
    matched: MatchedResults, missed: np.ndarray, groups: dict[str, dict[str, np.ndarray]]
) -> dict[str, list[Slice]]:
    """Evaluate the people of every slice.

    The AP of a slice is COCO's, with all other people ignored as COCO ignores people of another size. A result that
    matches nobody counts against the slice of the person whom it resembles most, or not at all if its OKS with
    everybody is below 0.1. For the sizes, the area of the result decides, as in COCO's APM and APL.

    Args:
        missed: (G,) bool: people whom no result matches at OKS 0.5.
        groups: see ``Attributes.groups``. Sizes of which there is nobody are left out.
    """
    nearest, oks = matched.nearest()
    nearest = np.where(oks >= MATCH_OKS, nearest, -1)
    slices: dict[str, list[Slice]] = {}
    for dimension, members in groups.items():
        slices[dimension] = []
        for name, is_member in members.items():
            people = is_member & matched.truth.people
            if dimension == "size" and not people.any():
                continue
            if dimension == "size":
                outcome = evaluate_area(matched, *SIZES[name])
            else:
                outcome = evaluate(matched, people, free=~select_rows(people, nearest))
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
