"""How the results depend on the people: by size, labelled keypoints, crowding, truncation and occlusion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.average_precision import PrecisionCurves, average_precision
from posenet.diagnosis.corrections import MatchedResults
from posenet.diagnosis.localisation import MATCH_OKS
from posenet.diagnosis.matching import Truth, match
from posenet.diagnosis.outcome import Outcome
from posenet.diagnosis.result import KINDS, OKS_THRESHOLDS, Slice

SIZES = ("small", "medium", "large")
SIZE_RANGES = ((0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e5**2))
"""Smallest and largest area of each of ``SIZES``, as in the COCO evaluation; both ends belong to it."""
CROWDING_IOU = 0.1
"""People whose boxes overlap more than this crowd each other."""
BORDER = 1.0
"""A box that ends within this many pixels of the border of the image touches it."""


@dataclass(frozen=True, eq=False)
class Attributes:
    """What the results may depend on, for each of G annotations."""

    size: np.ndarray  # (G,) index into ``SIZES``
    labelled: np.ndarray  # (G,) number of labelled keypoints
    crowding: np.ndarray  # (G,) number of other people whose boxes overlap with this one
    truncated: np.ndarray  # (G,) whether the box or a labelled keypoint touches or leaves the border of the image
    hidden: np.ndarray  # (G,) share of hidden keypoints among the labelled ones, 0-1

    @classmethod
    def of(cls, truth: Truth, image_sizes: np.ndarray) -> Attributes:
        """``image_sizes`` is (images, 2): width and height of every image."""
        labelled = truth.labelled.sum(axis=1)
        is_hidden = truth.labelled & (truth.keypoints[..., 2] < 2)
        return cls(
            size=np.searchsorted([SIZE_RANGES[1][0], np.nextafter(SIZE_RANGES[1][1], np.inf)], truth.areas, "right"),
            labelled=labelled,
            crowding=_count_overlaps(truth),
            truncated=_is_truncated(truth, image_sizes),
            hidden=is_hidden.sum(axis=1) / np.maximum(labelled, 1),
        )


def measure_sensitivity(results: MatchedResults, attributes: Attributes, outcome: Outcome) -> dict[str, list[Slice]]:
    """Evaluate the people of every slice.

    The AP of a slice is COCO's, with all other people ignored as COCO ignores people of another size. A result that
    matches nobody counts against the slice of the person whom it resembles most, or not at all if its OKS with
    everybody is below 0.1. Only for the sizes, the area of the result decides, as in COCO's APM and APL.

    Args:
        outcome: of the results as they are, all people counted.
    """
    truth = results.truth
    nearest = _most_similar_person(results)
    missed = outcome.missed[0]
    slices: dict[str, list[Slice]] = {}
    for dimension, members in _slices(truth, attributes, results.found.keypoints.shape[1]).items():
        slices[dimension] = []
        for number, (name, is_member) in enumerate(members):
            people = is_member & ~truth.ignored
            if dimension == "size":
                low, high = SIZE_RANGES[number]
                is_free = (results.found.areas < low) | (results.found.areas > high)
                counts_in_coco = (truth.areas >= low) & (truth.areas <= high) & ~truth.ignored
            else:
                is_free = (nearest < 0) | ~people[nearest]
                counts_in_coco = people
            kinds = results.kinds[(results.person >= 0) & people[results.person]]
            if people.any() or dimension != "size":
                slices[dimension].append(
                    Slice(
                        name=name,
                        people=int(people.sum()),
                        ap=_slice_ap(results, counts_in_coco, is_free),
                        counts=count_kinds(kinds),
                        missed=int((missed & people).sum()),
                    )
                )
    return slices


def count_kinds(kinds: np.ndarray) -> dict[str, int]:
    """How often each of ``KINDS`` is in an array of indices into it; negative ones are not counted."""
    return {kind: int((kinds == index).sum()) for index, kind in enumerate(KINDS)}


def _slices(truth: Truth, attributes: Attributes, num_keypoints: int) -> dict[str, list[tuple[str, np.ndarray]]]:
    """The name of every slice, and (G,) which annotations belong to it."""
    few = math.ceil(num_keypoints * 5 / 17)  # COCO: 1-5, 6-10, 11-15 and 16-17 labelled keypoints
    labelled = []
    for first in range(1, num_keypoints + 1, few):
        last = min(first + few - 1, num_keypoints)
        name = str(first) if first == last else f"{first}-{last}"
        labelled.append((name, (attributes.labelled >= first) & (attributes.labelled <= last)))
    crowding, hidden = attributes.crowding, attributes.hidden
    return {
        "size": [(name, attributes.size == index) for index, name in enumerate(SIZES)],
        "labelled keypoints": labelled,
        "crowding": [
            ("0", crowding == 0),
            ("1-2", (crowding >= 1) & (crowding <= 2)),
            ("3 or more", crowding >= 3),
        ],
        "truncation": [("inside", ~attributes.truncated), ("truncated", attributes.truncated)],
        "occlusion": [
            ("none hidden", hidden == 0),
            ("up to 25 %", (hidden > 0) & (hidden <= 0.25)),
            ("25 to 50 %", (hidden > 0.25) & (hidden <= 0.5)),
            ("over 50 %", hidden > 0.5),
        ],
    }


def _slice_ap(results: MatchedResults, people: np.ndarray, is_free: np.ndarray) -> float:
    """AP of the (G,) ``people``; (N,) unmatched results that are ``is_free`` do not count."""
    ignored = ~people
    matches = match(results.pairs, results.oks, ignored, results.truth.crowd, OKS_THRESHOLDS, len(results.found))
    outcome = Outcome.build(results.found, results.truth, matches, ignored)
    counted = outcome.correct | (outcome.background & ~is_free)
    num_people = np.full(len(matches), outcome.num_people)
    return average_precision(PrecisionCurves(outcome.scores, outcome.correct, counted).compute(num_people))


def _most_similar_person(results: MatchedResults) -> np.ndarray:
    """(N,) the labelled person with whom every result has the highest OKS of at least 0.1, else -1."""
    nearest = np.full(len(results.found), -1)
    pairs = results.pairs
    rows = np.flatnonzero((results.oks >= MATCH_OKS) & ~results.truth.ignored[pairs.truth])
    rows = rows[np.argsort(results.oks[rows], kind="stable")]
    nearest[pairs.result[rows]] = pairs.truth[rows]  # the last assignment stays
    return nearest


def _count_overlaps(truth: Truth) -> np.ndarray:
    """(G,) number of other people of the image, crowd regions excluded, with a box IoU above ``CROWDING_IOU``."""
    counts = np.zeros(len(truth), int)
    starts = np.flatnonzero(np.diff(truth.image, prepend=-1))
    for first, last in zip(starts, [*starts[1:], len(truth)]):
        rows = first + np.flatnonzero(~truth.crowd[first:last])
        counts[rows] = (_box_iou(truth.boxes[rows]) > CROWDING_IOU).sum(axis=1) - 1  # a person overlaps with itself
    return np.maximum(counts, 0)


def _box_iou(boxes: np.ndarray) -> np.ndarray:
    """(P, P) intersection over union of boxes (P, 4) x, y, width, height; 1 of a box with itself."""
    low = boxes[:, :2]
    high = low + boxes[:, 2:]
    overlap = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    intersection = np.prod(np.maximum(overlap, 0), axis=2)
    area = np.prod(boxes[:, 2:], axis=1)
    union = area[:, None] + area - intersection
    iou = np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)
    np.fill_diagonal(iou, 1)
    return np.asarray(iou)


def _is_truncated(truth: Truth, image_sizes: np.ndarray) -> np.ndarray:
    size = image_sizes[truth.image].astype(float)  # (G, 2)
    high = truth.boxes[:, :2] + truth.boxes[:, 2:]
    box = (truth.boxes[:, :2] <= BORDER) | (high >= size - BORDER)
    xy = truth.keypoints[..., :2]
    keypoint = ((xy <= 0) | (xy >= size[:, None] - 1)).any(axis=2) & truth.labelled
    return np.asarray(box.any(axis=1) | keypoint.any(axis=1))
