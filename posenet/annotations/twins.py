"""Left and right: which keypoints are twins.

Twins are those of ``flip_idx``, of the names, of known layouts such as the 68 points of a face, or else measured. Which
of a pair is called left changes nothing that is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from posenet.messages import pluralize
from posenet.skeleton.known_names import Pair, known_twins, pair_left_right, without_known_twin
from posenet.skeleton.skeleton import list_names, twins


class Twins(NamedTuple):
    """The pairs of left and right of an object."""

    pairs: tuple[Pair, ...]  # left and right by name; if the names have no sides, in any order
    mirror: bool  # whether mirrored images may be used: every keypoint is in a pair, or known to be its own twin
    message: str  # one line: how many pairs there are and what they are from, or what is missing


def find_twins(names: Sequence[str], joints: np.ndarray, flip_idx: object = None, category: str = "") -> Twins:
    """Find the pairs of left and right among keypoints.

    Args:
        names: of the K keypoints.
        joints: (P, K, 3) x, y, visibility of annotated people: asked where neither names nor ``flip_idx`` decide.
        flip_idx: for every keypoint the number, from 0, of its twin or its own. One that is not valid, or has no pair
            as labelling services export it by default, says nothing.
        category: what the objects are.
    """
    pairs = pair_by_statement(names, flip_idx, category)
    is_stated = _has_pairs(flip_idx, len(names))
    unknown = () if is_stated else without_known_twin(names, pairs, category)
    source = ", from flip_idx" if is_stated else ", from the names"
    if len(unknown) > 1:
        try:
            from posenet.annotations.checks.measured_twins import measure_twins
        except ModuleNotFoundError:  # a part of the package that may be left out
            twin_of = None
        else:
            known = [(names.index(a), names.index(b)) for a, b in pairs]
            twin_of = measure_twins(joints, known, [names.index(name) for name in unknown])
        if twin_of is None:
            missing = f"{pluralize(len(unknown), 'keypoint')} without a twin: {list_names(unknown)}"
            return Twins(pairs, False, f"{missing}; no images are mirrored")
        measured = [(names[a], names[b]) for a, b in enumerate(twin_of.tolist()) if a < b and names[a] in unknown]
        pairs = (*pairs, *measured)
        source = ": so mirrored annotations look like the others"
    count = pluralize(len(pairs), "pair of left and right", "pairs of left and right")
    return Twins(pairs, True, (count if pairs else "no pairs of left and right") + source)


def is_flip_idx(value: object, count: int) -> TypeGuard[list[int]]:
    """Whether a value is a list of the number, from 0, of every keypoint's twin, or of itself."""
    if not isinstance(value, list) or len(value) != count or any(type(index) is not int for index in value):
        return False
    return all(0 <= index < count and value[index] == own for own, index in enumerate(value))


def _has_pairs(flip_idx: object, count: int) -> TypeGuard[list[int]]:
    return is_flip_idx(flip_idx, count) and flip_idx != list(range(count))


def pair_by_statement(names: Sequence[str], flip_idx: object, category: str) -> tuple[Pair, ...]:
    """The pairs by name; then those of ``flip_idx``, or of a known layout, whose keypoints have no twin by name."""
    by_name = pair_left_right(names)
    paired = twins(by_name)
    if _has_pairs(flip_idx, len(names)):
        others = [(names[a], names[b]) for a, b in enumerate(flip_idx) if a < b]
    else:
        others = list(known_twins(names, category))
    return (*by_name, *(pair for pair in others if pair[0] not in paired and pair[1] not in paired))
