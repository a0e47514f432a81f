"""Groups of candidates that limbs connect, the strongest links first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np


def group_candidates(keypoint: np.ndarray, ends: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Group candidates so that limbs with high scores join members of one group, and no group has a keypoint twice.

    At first, every candidate is a separate group. The link between two groups is the sum of the scores of all limbs
    between them; groups that have a keypoint in common have no link. In each step, the two groups with the strongest
    link are merged.

    Args:
        keypoint: (N,) keypoint of each candidate.
        ends: (M, 2) candidates that each limb connects; no pair twice.
        score: (M,) score of each limb, above 0.

    Returns:
        (N,) label of each candidate's group: the row of one of its members.
    """
    members = [[row] for row in range(len(keypoint))]
    keypoint_bits = [1 << index for index in keypoint.tolist()]  # the keypoints of each group, one bit for each
    links: list[dict[int, float]] = [{} for _ in members]  # links[a][b] is the link between groups a and b
    queue = list(zip((-score).tolist(), *ends.T.tolist()))  # (-link, a, b): a heap returns the smallest first
    for negative_link, a, b in queue:
        links[a][b] = links[b][a] = -negative_link
    heapify(queue)
    while queue:
        negative_link, a, b = heappop(queue)
        if links[a].get(b) != -negative_link:  # a or b has been merged since this entry was queued
            continue
        if len(links[a]) < len(links[b]):
            a, b = b, a
        members[a] += members[b]
        members[b] = []
        keypoint_bits[a] |= keypoint_bits[b]
        _merge_links(links, keypoint_bits, a, b, queue)
    label = [0] * len(members)
    for group, rows in enumerate(members):
        for row in rows:
            label[row] = group
    return np.array(label, np.int64)


def _merge_links(
    links: list[dict[int, float]], keypoint_bits: list[int], a: int, b: int, queue: list[tuple[float, int, int]]
) -> None:
    """Add the links of group b to those of group a, and remove a's links to groups with a keypoint of b."""
    links_of_a = links[a]
    links_of_b = links[b]
    links[b] = {}
    del links_of_a[b]
    del links_of_b[a]
    for other, link in links_of_b.items():
        del links[other][b]
        if not keypoint_bits[a] & keypoint_bits[other]:
            link += links_of_a.get(other, 0.0)
            links_of_a[other] = links[other][a] = link
            heappush(queue, (-link, a, other))
    for other in [other for other in links_of_a if keypoint_bits[a] & keypoint_bits[other]]:
        del links_of_a[other]
        del links[other][a]
