"""Fragments: groups of keypoints that no limb connects to the person whom they belong to."""

from __future__ import annotations

import numpy as np

from posenet.inference.decoder.pose_model import MAX_DEVIATION, PoseModel

MAX_SCALE_RATIO = 2.5
"""A fragment is not assigned if its scale is larger than the person's by this factor."""
LOG_SCALE_SIGMA = 0.6
"""Standard deviation of the logarithm of a fragment's scale divided by the person's."""
MIN_SCORE_RATIO = 0.6
"""A fragment is not assigned if its mean score is below this share of the person's."""
MAX_GROUPS = 3000
"""Groups that may receive fragments or be assigned, those with the highest sum of scores. Only maps of noise have more;
this limits the memory that they need."""
PAIRS_PER_STEP = 2**16
"""Pairs of fragments and people whose costs are computed together, which also limits the memory."""


def assign_fragments(
    pose_model: PoseModel, position: np.ndarray, score: np.ndarray, limbs_are_complete: bool
) -> np.ndarray:
    """Assign every fragment to the person whose pose fits it best.

    A fragment is a group that no limb connects to its person, such as an arm without its shoulder. It is assigned
    to a person that lacks its keypoints; see ``_assignment_costs`` for the other conditions.

    Args:
        position, score: (G, K) positions and scores of the groups; see ``pose_model``.
        limbs_are_complete: whether the maps show all limbs. If they do, a fragment is not assigned to a person if the
            skeleton has a body part between them: the limb of that part would have joined them already.

    Returns:
        (G,) the group that each group becomes a part of; itself if it is not assigned.
    """
    found = score > 0
    total = score.sum(axis=1)
    count = found.sum(axis=1)
    ranked = np.argsort(-total, kind="stable")[:MAX_GROUPS]
    people = ranked[count[ranked] > 1]
    mean = total / count
    fragments = ranked[mean[ranked] >= MIN_SCORE_RATIO * mean[people].min(initial=np.inf)]
    is_possible = (
        ~_have_common(found[fragments], found[people])
        & (total[fragments, None] <= total[people])
        & (mean[fragments, None] >= MIN_SCORE_RATIO * mean[people])
        & (fragments[:, None] != people)
    )
    if limbs_are_complete:
        is_possible &= ~_have_common(found[fragments] @ pose_model.is_part > 0, found[people])
    target = np.arange(len(position))
    row, column = np.nonzero(is_possible)
    if not len(row):
        return target
    cost = _assignment_costs(pose_model, position, found, fragments[row], people[column])
    in_order = np.argsort(cost, kind="stable")[: np.isfinite(cost).sum()]
    receivers: set[int] = set()
    for fragment, person in zip(fragments[row[in_order]].tolist(), people[column[in_order]].tolist()):
        # A group may be both a fragment and a person. After it has been assigned, it receives no fragment, and
        # after it has received one, it is not assigned.
        is_free = target[fragment] == fragment and fragment not in receivers and target[person] == person
        if is_free and not (found[fragment] & found[person]).any():
            target[fragment] = person
            receivers.add(person)
            found[person] |= found[fragment]
    return target


def _assignment_costs(
    pose_model: PoseModel, position: np.ndarray, found: np.ndarray, fragment: np.ndarray, person: np.ndarray
) -> np.ndarray:
    """(M,) cost of the assignment of each ``fragment`` to its ``person``, infinite where it is impossible.

    With d and sigma the distances of the fragment's keypoints from where they are expected in the person and their
    errors (see ``PoseModel.expect_keypoints``), and g the logarithm of the fragment's scale divided by the person's (0
    for a single keypoint), it is a negative log likelihood up to a constant:

        mean(d^2 / sigma^2) + mean(log sigma^2) + g^2 / (2 LOG_SCALE_SIGMA^2)

    An assignment is impossible beyond MAX_DEVIATION or MAX_SCALE_RATIO.

    Args:
        fragment, person: (M,) groups.
    """
    people, row = np.unique(person, return_inverse=True)
    expected, sigma = pose_model.expect_keypoints(position[people], found[people])
    log_variance = np.log(sigma**2)
    share = found / found.sum(axis=1, keepdims=True)  # (G, K)
    square_deviation = np.empty(len(row))
    mean_log_variance = np.empty(len(row))
    for start in range(0, len(row), PAIRS_PER_STEP):
        step = slice(start, start + PAIRS_PER_STEP)
        distance = np.abs(position[fragment[step]] - expected[row[step]]) / sigma[row[step]]  # (pairs, K)
        square_deviation[step] = np.einsum("mk,mk->m", share[fragment[step]], distance**2)
        mean_log_variance[step] = np.einsum("mk,mk->m", share[fragment[step]], log_variance[row[step]])
    scale = np.maximum(pose_model.estimate_poses(position, found).scale[:, 0], 1e-3)
    is_single = found[fragment].sum(axis=1) == 1
    log_scale_ratio = np.where(is_single, 0, np.log(scale[fragment] / scale[person]))
    cost = square_deviation + mean_log_variance + log_scale_ratio**2 / (2 * LOG_SCALE_SIGMA**2)
    is_impossible = (square_deviation > MAX_DEVIATION**2) | (log_scale_ratio > np.log(MAX_SCALE_RATIO))
    return np.where(is_impossible, np.inf, cost)


def _have_common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(A, B) whether two rows of bools, of (A, K) and (B, K), have a true value in common."""
    return np.asarray(first.astype(np.float32) @ second.astype(np.float32).T > 0)
