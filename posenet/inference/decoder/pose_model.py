"""The pose model: where the keypoints of one person are relative to each other.

It answers four questions about groups of keypoints: whether a limb is too long for its person, to which person a
fragment belongs, where a keypoint that was not found is expected, and where a keypoint with a low score most likely is.

Coordinates are map cells, x right and y down, as complex numbers x + iy. For each keypoint k of an upright person,
``Skeleton.layout`` states an expected height h_k, its distance below the hips, and a spread s_k, its root-mean-square
distance from that position. Both are in torso lengths. A person has an origin o, near the hips, and an axis a, the
vector along the torso away from the head. The position of keypoint k is then

    z_k = o + a h_k + e_k,    where the mean of |e_k|^2 is |a|^2 s_k^2.

The deviations e_k are correlated. Keypoints that body parts connect deviate alike: where the elbow is, the wrist is not
far. Keypoints of opposite sides deviate in opposite directions, because a person faces left or right. With the side
c_k = 1 for left, -1 for right and 0 for other keypoints, and d_jk the number of body parts on the shortest path from j
to k that never crosses from one side to the other, the correlation is

    R_jk = p c_j c_k + sqrt((1 - p |c_j|) (1 - p |c_k|)) q^d_jk,    p = SIDE_CORRELATION, q = PART_CORRELATION.

Another part of every deviation depends on no other keypoint. So the covariance of the deviations, in squared torso
lengths, is

    C_jk = s_j s_k (R_jk + INDEPENDENT_VARIANCE [j = k]).

A derived keypoint is the mean of two others, for example the neck that of the shoulders; so is its deviation, apart
from DERIVED_VARIANCE.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from posenet.skeleton import Skeleton

SPREAD_FLOOR = 0.05
"""Added to squared spreads in the weights of the regression, so that no keypoint dominates it."""
UPRIGHT_WEIGHT = 0.15
"""Weight of the upright direction in the estimated direction of the axis."""
SIDE_CORRELATION = 0.3
"""Share of the variance of a left or right keypoint that the direction in which the person faces explains."""
PART_CORRELATION = 0.6
"""Correlation of the rest of the deviations of two keypoints that a body part connects."""
INDEPENDENT_VARIANCE = 0.08
"""Variance of a deviation that depends on no other keypoint, in units of the squared spread."""
DERIVED_VARIANCE = 5e-4
"""Variance of the distance of a derived keypoint from the mean of its two sources, in squared torso lengths."""
POSITION_VARIANCE = 0.003
"""Mean square error of the position of a keypoint with score 1/2, in squared torso lengths."""
POSITION_EXPONENT = 1.5
"""How fast this error grows as the score falls."""
LENGTH_SLACK = 0.5
"""Additional spread in the expected length of a limb, in torso lengths, because perspective distorts people."""
LENGTH_TOLERANCE = 1.0
"""Ratio of a limb's length to its expected length above which its score is lowered."""
MAX_LENGTH_PENALTY = 0.6
"""Share by which the score is lowered if the ratio exceeds ``LENGTH_TOLERANCE`` by one or more."""
POSE_UNCERTAINTY = 0.3
"""Error, in torso lengths, of a pose estimated from one keypoint. It falls with the root of their number."""
MAX_SQUARE_DEVIATION = 9.0
"""A fragment with a larger mean square deviation, in units of the variance, is not assigned: three sigma."""
MAX_SCALE_RATIO = 2.5
"""A fragment is not assigned if its scale is larger than the person's by this factor."""
LOG_SCALE_SIGMA = 0.6
"""Standard deviation of the logarithm of a fragment's scale divided by the person's."""
MIN_SCORE_RATIO = 0.6
"""A fragment is not assigned if its mean score is below this share of the person's."""
ROUNDS = 3
"""Rounds of assignment. Each starts with a new estimate of the poses."""
MIN_FOR_ESTIMATE = 3
"""Keypoints of a person from which the positions of the others are estimated."""
MAX_PEOPLE = 40
"""People that may receive fragments, those with the highest sum of scores."""
MAX_FRAGMENTS = 120
"""Fragments that may be assigned, those with the highest sum of scores."""


@dataclass(frozen=True)
class Poses:
    """Poses of G groups of keypoints."""

    origin: np.ndarray
    """(G,) complex, in cells."""
    axis: np.ndarray
    """(G,) complex, in cells; 0 for single keypoints."""
    count: np.ndarray
    """(G,) int, number of keypoints."""

    @property
    def scale(self) -> np.ndarray:
        """(G,) length of the torso in cells; 0 for single keypoints."""
        return np.asarray(np.abs(self.axis))


class ExpectedKeypoints(NamedTuple):
    """Where the K keypoints of P people are expected."""

    position: np.ndarray
    """(P, K) complex, in cells."""
    sigma: np.ndarray
    """(P, K) root-mean-square distance from that position, in cells."""


class Deviations(NamedTuple):
    """How the keypoints found deviate from the poses of P people."""

    is_found: np.ndarray
    """(P, K) bool."""
    along_axis: np.ndarray
    """(P, K) complex, positions without deviation, in cells."""
    scale: np.ndarray
    """(P, 1) length of the torso in cells, above 0."""
    value: np.ndarray
    """(P, K) complex, deviations in torso lengths; 0 for keypoints that were not found."""


class AssignmentCosts(NamedTuple):
    """The costs of assigning fragments to people."""

    cost: np.ndarray
    """(F, P) negative log likelihood, infinite where the assignment is impossible."""
    fragments: np.ndarray
    """(F,) labels of the fragments."""
    people: np.ndarray
    """(P,) labels of the people."""


class PoseModel:
    """The layout of a skeleton as arrays in torso lengths, and estimates from it."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.height, self.spread = np.array([skeleton.layout[name] for name in skeleton.keypoints]).T  # (K,) each
        a, b = skeleton.part_ends.T
        self.is_part = np.zeros((len(self.height), len(self.height)))
        """(K, K) 1 where a body part connects two keypoints, else 0."""
        self.is_part[a, b] = self.is_part[b, a] = 1
        self.correlation = _deviation_correlation(skeleton)
        """(K, K) R of the module's docstring."""
        self.covariance = _deviation_covariance(skeleton, self.correlation, self.spread)
        """(K, K) C of the module's docstring."""
        self.part_length = np.sqrt(  # (B,), root mean square
            (self.height[a] - self.height[b]) ** 2 + self.spread[a] ** 2 + self.spread[b] ** 2 + LENGTH_SLACK**2
        )

    def estimate_poses(self, position: np.ndarray, keypoint: np.ndarray, label: np.ndarray) -> Poses:
        """Estimate origin and axis of groups of keypoints, in closed form.

        For one group, let z_i, h_i and s_i be the positions, expected heights and spreads of its n keypoints, and let
        sums run over these.

        Scale. If deviations are independent, the squared distances between all pairs have the expected sum

            sum_{i<j} |a|^2 ((h_i - h_j)^2 + s_i^2 + s_j^2) = |a|^2 (n sum h^2 - (sum h)^2 + (n - 1) sum s^2)

        and the observed sum

            sum_{i<j} |z_i - z_j|^2 = n sum |z|^2 - |sum z|^2.

        |a| is chosen so that both are equal. For n = 1 it is 0.

        Direction. The weighted least-squares regression of z on h, with weights w_i = 1 / (s_i^2 + SPREAD_FLOOR), has
        the slope cov(h, z) / var(h), where the weighted mean is M(v) = sum(w v) / sum(w) and

            cov(h, z) = M(h z) - M(h) M(z).

        The variance is real and positive, so the direction of the slope is that of the covariance. UPRIGHT_WEIGHT |a| i
        is added to it. This turns the axis towards upright, most of all if the heights of the keypoints hardly differ.

        Origin. The regression line passes through the means: o = M(z) - a M(h).

        Args:
            position: (N,) complex, in cells.
            keypoint: (N,) index of each keypoint.
            label: (N,) its group. Labels need not be consecutive.

        Returns:
            The poses of groups 0 to ``label.max()``.
        """
        height = self.height[keypoint]
        spread = self.spread[keypoint]
        x = position.real
        y = position.imag

        def group_sum(values: np.ndarray) -> np.ndarray:
            """(N,) to (G,)."""
            return np.bincount(label, values)

        count = np.bincount(label)
        observed = count * group_sum(np.abs(position) ** 2) - group_sum(x) ** 2 - group_sum(y) ** 2
        expected = count * group_sum(height**2) - group_sum(height) ** 2 + (count - 1) * group_sum(spread**2)
        scale = np.sqrt(np.maximum(observed, 0) / np.maximum(expected, 1e-9)) * (count > 1)

        weight = 1 / (spread**2 + SPREAD_FLOOR)
        sum_weight = np.maximum(group_sum(weight), 1e-9)  # it is 0 for unused labels

        weighted_height = weight * height
        mean_position = (group_sum(weight * x) + 1j * group_sum(weight * y)) / sum_weight
        mean_height = group_sum(weighted_height) / sum_weight
        mean_product = (group_sum(weighted_height * x) + 1j * group_sum(weighted_height * y)) / sum_weight
        covariance = mean_product - mean_height * mean_position
        direction = covariance + 1j * (UPRIGHT_WEIGHT * scale + 1e-9)
        axis = scale * direction / np.maximum(np.abs(direction), 1e-9)
        return Poses(mean_position - axis * mean_height, axis, count)

    def expect_keypoints(
        self, poses: Poses, groups: np.ndarray, position: np.ndarray, keypoint: np.ndarray, label: np.ndarray
    ) -> ExpectedKeypoints:
        """Estimate where all keypoints of some groups are, from those that were found.

        Let u_j = (z_j - o - a h_j) / |a| be the deviations of the n keypoints found, as a vector u, and C the
        covariance of the deviations (see the module). Then keypoint k is expected at

            o + a h_k + |a| c^T C_found^-1 u,

        where C_found and c are the rows and columns of C for the found keypoints, and for k. This is the conditional
        mean of a Gaussian distribution. The conditional variance, with the error of the pose itself, is

            |a|^2 (C_kk - c^T C_found^-1 c + POSE_UNCERTAINTY^2 / n).

        Args:
            poses: poses of all groups.
            groups: (P,) labels of the groups.
            position, keypoint, label: those of ``estimate_poses``.
        """
        deviations = self._measure_deviations(poses, groups, position, keypoint, label)
        c = self.covariance * deviations.is_found[:, None, :]  # (P, K, K)
        gain = c @ np.linalg.inv(self._covariance_of_found(deviations.is_found, np.zeros(1)))
        expected = (gain @ deviations.value[:, :, None])[:, :, 0]
        variance = np.maximum(self.covariance.diagonal() - (gain * c).sum(axis=2), 0)
        pose_variance = POSE_UNCERTAINTY**2 / poses.count[groups][:, None]
        return ExpectedKeypoints(
            position=deviations.along_axis + deviations.scale * expected,
            sigma=deviations.scale * np.sqrt(variance + pose_variance),
        )

    def refine_keypoints(
        self, position: np.ndarray, keypoint: np.ndarray, score: np.ndarray, label: np.ndarray
    ) -> np.ndarray:
        """Move keypoints with low scores towards where the rest of their person suggests they are.

        A map of a network is low where the network is uncertain about the position. With the score c of a keypoint, the
        mean square error of its position, in squared torso lengths, is taken to be

            t = POSITION_VARIANCE (1 / c - 1)^POSITION_EXPONENT,    0 for c >= 1.

        Let u be the deviations of the keypoints found, C_found their covariance (see ``expect_keypoints``), and T the
        diagonal matrix of the errors t. Given these inexact positions, the mean of the Gaussian distribution of the
        true deviations is

            C_found (C_found + T)^-1 u = u - T (C_found + T)^-1 u.

        Groups of fewer than ``MIN_FOR_ESTIMATE`` keypoints stay as they are.

        Args:
            position, keypoint, label: those of ``estimate_poses``.
            score: (N,) score of each keypoint, above 0.

        Returns:
            (N,) complex, new positions.
        """
        poses = self.estimate_poses(position, keypoint, label)
        groups = np.flatnonzero(poses.count >= MIN_FOR_ESTIMATE)
        row = np.full(len(poses.count), -1)  # label to row of ``groups``
        row[groups] = np.arange(len(groups))
        members = np.flatnonzero(row[label] >= 0)
        place = (row[label[members]], keypoint[members])
        deviations = self._measure_deviations(poses, groups, position, keypoint, label)
        error = np.zeros(deviations.is_found.shape)
        error[place] = POSITION_VARIANCE * np.maximum(1 / score[members] - 1, 0) ** POSITION_EXPONENT
        u = np.stack([deviations.value.real, deviations.value.imag], axis=2)  # (P, K, 2): a real system is faster
        shift = error[:, :, None] * np.linalg.solve(self._covariance_of_found(deviations.is_found, error), u)
        shift *= deviations.scale[:, :, None]
        refined = position.copy()
        refined[members] -= (shift[..., 0] + 1j * shift[..., 1])[place]
        return refined

    def _measure_deviations(
        self, poses: Poses, groups: np.ndarray, position: np.ndarray, keypoint: np.ndarray, label: np.ndarray
    ) -> Deviations:
        """The arguments are those of ``expect_keypoints``."""
        row = np.full(len(poses.count), -1)  # label to row of ``groups``
        row[groups] = np.arange(len(groups))
        members = np.flatnonzero(row[label] >= 0)
        place = (row[label[members]], keypoint[members])
        along_axis = poses.origin[groups][:, None] + poses.axis[groups][:, None] * self.height  # (P, K)
        scale = np.maximum(poses.scale[groups], 1e-3)[:, None]
        is_found = np.zeros(along_axis.shape, bool)
        is_found[place] = True
        value = np.zeros(along_axis.shape, np.complex128)
        value[place] = (position[members] - along_axis[place]) / scale[place[0], 0]
        return Deviations(is_found, along_axis, scale, value)

    def _covariance_of_found(self, is_found: np.ndarray, error: np.ndarray) -> np.ndarray:
        """(P, K, K) covariance of the keypoints found, with ``error``, (P, K) or (1,), added to the diagonal.

        The rows and columns of keypoints that were not found are those of the identity.
        """
        both_found = is_found[:, :, None] & is_found[:, None, :]
        diagonal = np.where(is_found, error, 1)
        return np.asarray(self.covariance * both_found + np.eye(len(self.height)) * diagonal[:, None, :])

    def length_factor(self, length: np.ndarray, part: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(M,) factors for limb scores: 1, or less for limbs that are too long for their person.

        With r the ratio of a limb's length to its expected length at the person's scale (both in cells), the factor is
        1 - MAX_LENGTH_PENALTY clip(r - LENGTH_TOLERANCE, 0, 1).
        """
        ratio = length / np.maximum(scale * self.part_length[part], 1e-6)
        return np.asarray(1 - MAX_LENGTH_PENALTY * np.clip(ratio - LENGTH_TOLERANCE, 0, 1))

    def assign_fragments(
        self,
        position: np.ndarray,
        keypoint: np.ndarray,
        score: np.ndarray,
        label: np.ndarray,
        limbs_are_complete: bool = False,
    ) -> np.ndarray:
        """Assign every fragment to the person with the pose that fits it best, and return the new (N,) labels.

        A fragment is a group that no limb connects to its person, such as an arm without its shoulder. It is assigned
        to a person that lacks its keypoints; see ``_assignment_costs`` for the other conditions.

        Args:
            position, keypoint, label: those of ``estimate_poses``.
            score: (N,) score of each keypoint.
            limbs_are_complete: whether the maps show the limbs of all body parts. Then a fragment that a body part
                should connect to a person, but no limb does, belongs to someone else.
        """
        label = label.copy()
        for _ in range(ROUNDS):
            costs = self._assignment_costs(position, keypoint, score, label, limbs_are_complete)
            order = np.argsort(costs.cost, axis=None, kind="stable")[: np.isfinite(costs.cost).sum()]
            if not len(order):
                break
            keypoint_bits = [0] * len(label)  # the keypoints of each group, one bit for each
            for group, index in zip(label.tolist(), keypoint.tolist()):
                keypoint_bits[group] |= 1 << index
            person_of: dict[int, int] = {}
            receivers: set[int] = set()
            fragment_row, person_row = np.unravel_index(order, costs.cost.shape)
            for fragment, person in zip(costs.fragments[fragment_row].tolist(), costs.people[person_row].tolist()):
                # A group may be both a fragment and a person. After it has been assigned, it receives no fragment.
                # After it has received one, it can be assigned only in a later round, with a new estimate of its pose.
                is_free = fragment not in person_of and fragment not in receivers and person not in person_of
                if is_free and not keypoint_bits[fragment] & keypoint_bits[person]:
                    person_of[fragment] = person
                    receivers.add(person)
                    keypoint_bits[person] |= keypoint_bits[fragment]
            for fragment, person in person_of.items():
                label[label == fragment] = person
        return label

    def _assignment_costs(
        self,
        position: np.ndarray,
        keypoint: np.ndarray,
        score: np.ndarray,
        label: np.ndarray,
        limbs_are_complete: bool,
    ) -> AssignmentCosts:
        """Cost of every assignment of a fragment to a person.

        For a keypoint of a fragment, let d be its distance from where the person's keypoint is expected, and sigma the
        root-mean-square distance (see ``expect_keypoints``). With g the logarithm of the fragment's scale divided by
        the person's (0 for a single keypoint), the cost is

            mean(d^2 / sigma^2) + mean(log sigma^2) + g^2 / (2 LOG_SCALE_SIGMA^2),

        with means over the fragment's keypoints. An assignment is impossible if person and fragment have a keypoint in
        common, if the fragment has the larger sum of scores, if a limb is missing between them although
        ``limbs_are_complete``, or beyond MIN_SCORE_RATIO, MAX_SQUARE_DEVIATION or MAX_SCALE_RATIO.
        """
        total = np.bincount(label, score)
        count = np.bincount(label)
        mean = total / np.maximum(count, 1)
        ranked = np.argsort(-total, kind="stable")
        people = ranked[count[ranked] > 1][:MAX_PEOPLE]
        min_mean = MIN_SCORE_RATIO * mean[people].min(initial=np.inf)
        fragments = ranked[(count[ranked] > 0) & (mean[ranked] >= min_mean)][:MAX_FRAGMENTS]
        has_keypoint = np.zeros((len(total), len(self.height)), np.float32)  # (G, K)
        has_keypoint[label, keypoint] = 1
        is_possible = (
            (has_keypoint[fragments] @ has_keypoint[people].T == 0)
            & (total[fragments, None] <= total[people])
            & (mean[fragments, None] >= MIN_SCORE_RATIO * mean[people])
            & (fragments[:, None] != people)
        )
        if limbs_are_complete:
            is_possible &= has_keypoint[fragments] @ self.is_part @ has_keypoint[people].T == 0
        fragments = fragments[is_possible.any(axis=1)]
        is_possible = is_possible[is_possible.any(axis=1)]
        people = people[is_possible.any(axis=0)]
        is_possible = is_possible[:, is_possible.any(axis=0)]
        if not is_possible.any():
            return AssignmentCosts(np.empty((0, 0)), fragments, people)

        poses = self.estimate_poses(position, keypoint, label)
        expected = self.expect_keypoints(poses, people, position, keypoint, label)
        fragment_row = np.full(len(total), -1)  # label to row of ``fragments``
        fragment_row[fragments] = np.arange(len(fragments))
        members = np.flatnonzero(fragment_row[label] >= 0)  # (m,) keypoints of all fragments
        sigma = expected.sigma.T[keypoint[members]]  # (m, P)
        distance = np.abs(position[members, None] - expected.position.T[keypoint[members]])
        is_member = np.arange(len(fragments))[:, None] == fragment_row[label[members]]  # (F, m)
        square_deviation = _fragment_means(distance**2 / sigma**2, is_member)
        log_sigma = _fragment_means(np.log(sigma), is_member)
        scale = np.maximum(poses.scale, 1e-3)
        log_scale_ratio = np.log(scale[fragments, None] / scale[people]) * (count[fragments, None] > 1)
        is_possible &= (square_deviation <= MAX_SQUARE_DEVIATION) & (log_scale_ratio <= np.log(MAX_SCALE_RATIO))
        cost = square_deviation + 2 * log_sigma + log_scale_ratio**2 / (2 * LOG_SCALE_SIGMA**2)
        return AssignmentCosts(np.where(is_possible, cost, np.inf), fragments, people)


@cache
def pose_model_of(skeleton: Skeleton) -> PoseModel:
    """The pose model of a skeleton with a layout, built once."""
    return PoseModel(skeleton)


def refine_keypoints(keypoints: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Move keypoints with low scores towards where the rest of their person suggests they are.

    See ``PoseModel.refine_keypoints``. Without a layout, they stay as they are.

    Args:
        keypoints: (P, K, 3) x, y and score of P people; the score is 0 where a keypoint was not found.

    Returns:
        (P, K, 3) float32 keypoints with new positions and the same scores.
    """
    refined = keypoints.astype(np.float32)
    person, keypoint = np.nonzero(keypoints[..., 2] > 0)
    if not skeleton.layout or not len(person):
        return refined
    x, y, score = keypoints[person, keypoint].astype(np.float64).T
    position = pose_model_of(skeleton).refine_keypoints(x + 1j * y, keypoint, score, person)
    refined[person, keypoint, 0] = position.real
    refined[person, keypoint, 1] = position.imag
    return refined


def estimate_missing_keypoints(keypoints: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Estimate where the keypoints of a person are that were not found.

    From ``MIN_FOR_ESTIMATE`` keypoints on, the pose model tells where the others are expected. With fewer, or for a
    skeleton without a layout, the estimate is the mean position of the keypoints found.

    Args:
        keypoints: (K, 3) x, y and score, 0 where a keypoint was not found; at least one was.

    Returns:
        (K, 2) x and y; those of the keypoints found are unchanged.
    """
    is_found = keypoints[:, 2] > 0
    estimate = keypoints[:, :2].astype(np.float64)
    if not skeleton.layout or is_found.sum() < MIN_FOR_ESTIMATE:
        estimate[~is_found] = estimate[is_found].mean(axis=0)
        return estimate
    pose_model = pose_model_of(skeleton)
    keypoint = np.flatnonzero(is_found)
    position = estimate[keypoint, 0] + 1j * estimate[keypoint, 1]
    label = np.zeros(len(keypoint), np.int64)
    poses = pose_model.estimate_poses(position, keypoint, label)
    expected = pose_model.expect_keypoints(poses, np.array([0]), position, keypoint, label).position[0]
    estimate[~is_found] = np.stack([expected.real, expected.imag], axis=1)[~is_found]
    return estimate


def _deviation_correlation(skeleton: Skeleton) -> np.ndarray:
    """(K, K) correlations of the deviations; see the module."""
    side = np.zeros(skeleton.num_keypoints)
    for left, right in skeleton.left_right:
        side[skeleton.index(left)] = 1
        side[skeleton.index(right)] = -1
    distance = np.full((len(side), len(side)), np.inf)
    np.fill_diagonal(distance, 0)
    for a, b in skeleton.part_ends:
        if side[a] * side[b] >= 0:
            distance[a, b] = distance[b, a] = 1
    for k in range(len(side)):  # Floyd and Warshall's shortest paths
        distance = np.minimum(distance, distance[:, k, None] + distance[k])
    rest = np.sqrt(1 - SIDE_CORRELATION * np.abs(side))
    correlation = SIDE_CORRELATION * np.outer(side, side) + np.outer(rest, rest) * PART_CORRELATION**distance
    # Body parts that form circles can make eigenvalues negative, which a matrix of correlations has not.
    values, vectors = np.linalg.eigh(correlation)
    correlation = (vectors * np.maximum(values, 0)) @ vectors.T
    scale = np.sqrt(correlation.diagonal())
    return np.asarray(correlation / np.outer(scale, scale))


def _deviation_covariance(skeleton: Skeleton, correlation: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(K, K) covariance of the deviations; see the module."""
    covariance = (correlation + INDEPENDENT_VARIANCE * np.eye(len(spread))) * np.outer(spread, spread)
    mean_of_sources = np.eye(len(spread))
    for name, (a, b) in skeleton.derived.items():
        mean_of_sources[skeleton.index(name)] = 0
        mean_of_sources[skeleton.index(name), [skeleton.index(a), skeleton.index(b)]] = 0.5
    covariance = mean_of_sources @ covariance @ mean_of_sources.T
    for name in skeleton.derived:
        covariance[skeleton.index(name), skeleton.index(name)] += DERIVED_VARIANCE
    return np.asarray(covariance)


def _fragment_means(values: np.ndarray, is_member: np.ndarray) -> np.ndarray:
    """Mean of (m, P) values over the members of each fragment, (F, P); ``is_member`` is (F, m)."""
    weights = is_member.astype(values.dtype)
    return np.asarray(weights @ values / weights.sum(1, keepdims=True))
