"""How the results depend on the size of the people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from posenet.diagnosis.average_precision import Outcome, average_precision
from posenet.diagnosis.error_kinds import SIZES
from posenet.diagnosis.keypoint_errors import MatchedResults, count_kinds
from posenet.diagnosis.matching import select_rows


class Slice(NamedTuple):
    """The people of a size."""

    name: str  # one of ``SIZES``
    people: int  # number of labelled people
    ap: float  # AP of these people, COCO's APM and APL
    counts: dict[str, int]  # number of keypoints of each kind in these people's matched results
    missed: int  # how many of these people no result matches at OKS 0.5


def size_numbers(areas: np.ndarray) -> np.ndarray:
    """The index into ``SIZES`` of each area."""
    low, high = SIZES["medium"]
    return np.asarray((areas >= low).astype(int) + (areas > high))


def measure_sizes(matched: MatchedResults, missed: np.ndarray, by_size: Mapping[str, Outcome]) -> list[Slice]:
    """The people of each size of which there is somebody.

    Args:
        missed: (G,) bool: people whom no result matches at OKS 0.5.
        by_size: outcome of the people of each size.
    """
    slices = []
    for number, (name, outcome) in enumerate(by_size.items()):
        people = (size_numbers(matched.truth.areas) == number) & matched.truth.people
        counts = count_kinds(matched.kinds[select_rows(people, matched.person)])
        ap = average_precision(outcome.precision())
        if people.any():
            slices.append(Slice(name, int(people.sum()), ap, counts, int((missed & people).sum())))
    return slices
