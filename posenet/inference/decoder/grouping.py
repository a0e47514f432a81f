"""Keypoint candidates to people: how well the body parts join them, and which belong together."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np


def join(keypoint: np.ndarray, limbs: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Group candidates so that the evidence within groups is great and none has a keypoint twice.

    The two groups with the most evidence between them, over all limbs from one to the other, become one; and so on.
    So the parts of a body vote together: a limb that happens to run to a neighbour is outvoted by the others as soon
    as they have met, and a tie between two people is put off until more of them is known.

    Args:
        keypoint: (N,) which keypoint each candidate is.
        limbs: (M, 2) rows of ``keypoint``, each pair once.
        evidence: (M,) above 0.

    Returns:
        (N,) label of each candidate's group, the row of one of its members.
    """
    group = list(range(len(keypoint)))
    members = [[row] for row in group]
    kinds = [1 << kind for kind in keypoint.tolist()]
    near: list[dict[int, float]] = [{} for _ in group]
    queue = list(zip((-evidence).tolist(), *limbs.T.tolist()))
    for value, a, b in queue:
        near[a][b] = near[b][a] = -value
    heapify(queue)
    while queue:
        value, a, b = heappop(queue)
        if near[a].get(b) != -value:  # one of the two has since changed
            continue
        if len(near[a]) < len(near[b]):
            a, b = b, a
        members[a] += members[b]
        members[b] = []
        kinds[a] |= kinds[b]
        _merge(near, kinds, a, b, queue)
    for a, rows in enumerate(members):
        for row in rows:
            group[row] = a
    return np.array(group, np.int64)


def _merge(near: list[dict[int, float]], kinds: list[int], a: int, b: int, queue: list[tuple[float, int, int]]) -> None:
    """Hand the neighbours of group b to group a, and part a from those that it now conflicts with."""
    mine, theirs = near[a], near[b]
    near[b] = {}
    del mine[b], theirs[a]
    for c, value in theirs.items():
        del near[c][b]
        if not kinds[a] & kinds[c]:
            mine[c] = near[c][a] = value = mine.get(c, 0.0) + value
            heappush(queue, (-value, a, c))
    for c in [c for c in mine if kinds[a] & kinds[c]]:
        del mine[c], near[c][a]
