"""The pose model: where the keypoints of one person are relative to each other.

G groups of keypoints are two arrays: the positions of their K keypoints, (G, K) complex in cells, and their scores,
(G, K), or whether they were found; both are 0 for keypoints that were not found.

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

from functools import cache

import numpy as np

from posenet.skeleton import Skeleton

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
MAX_LENGTH_PENALTY = 0.6
"""Share by which the score of a limb is lowered if it is twice as long as expected, or longer."""
POSE_UNCERTAINTY = 0.3
"""Error, in torso lengths, of a pose estimated from one keypoint. It falls with the root of their number."""
MAX_DEVIATION = 3.0
"""Keypoints farther from where a person's pose expects them do not belong to the person; in sigmas, and for several
keypoints the root mean square."""
MIN_FOR_ESTIMATE = 3
"""Keypoints of a person from which the positions of the others are estimated."""


class PoseModel:
    """The layout of a skeleton as arrays in torso lengths, and estimates from it."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.height, self.spread = np.array([skeleton.layout[name] for name in skeleton.keypoints]).T  # (K,) each
        a, b = skeleton.part_ends.T
        self.covariance = _deviation_covariance(skeleton, self.spread)
        """(K, K) C of the module's docstring."""
        self.is_part = np.zeros((skeleton.num_keypoints, skeleton.num_keypoints), bool)
        """(K, K) whether a body part connects two keypoints."""
        self.is_part[a, b] = self.is_part[b, a] = True
        self.part_length = np.sqrt(  # (B,), root mean square
            (self.height[a] - self.height[b]) ** 2 + self.spread[a] ** 2 + self.spread[b] ** 2 + LENGTH_SLACK**2
        )

    def estimate_poses(self, position: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimate origin and axis of groups of keypoints, in closed form.

        Let z_i, h_i and s_i be the positions, expected heights and spreads of the n keypoints of one group.

        Scale. |a| is chosen so that the squared distances between all pairs have the expected sum, that of independent
        deviations (for n = 1 it is 0):

            n sum |z|^2 - |sum z|^2 = |a|^2 (n sum h^2 - (sum h)^2 + (n - 1) sum s^2)

        Direction. The slope of the weighted regression of z on h, with weights w_i = 1 / s_i^2 and
        weighted means M(v) = sum(w v) / sum(w), has the direction of the covariance M(h z) - M(h) M(z). To this,
        UPRIGHT_WEIGHT |a| i is added, which turns the axis towards upright.

        Origin. The regression line passes through the means: o = M(z) - a M(h).

        Returns:
            (G, 1) origins and (G, 1) axes, complex, in cells. The axis of a single keypoint is 0.
        """
        count = found.sum(axis=1)
        observed = count * (np.abs(position) ** 2).sum(axis=1) - np.abs(position.sum(axis=1)) ** 2
        expected = (
            count * (found @ self.height**2) - (found @ self.height) ** 2 + (count - 1) * (found @ self.spread**2)
        )
        scale = np.sqrt(np.maximum(observed, 0) / np.maximum(expected, 1e-9)) * (count > 1)

        weight = 1 / self.spread**2
        sum_weight = np.maximum(found @ weight, 1e-9)
        mean_position = position @ weight / sum_weight
        mean_height = found @ (weight * self.height) / sum_weight
        covariance = position @ (weight * self.height) / sum_weight - mean_height * mean_position
        direction = covariance + 1j * (UPRIGHT_WEIGHT * scale + 1e-9)
        axis = scale * direction / np.maximum(np.abs(direction), 1e-9)
        origin = mean_position - axis * mean_height
        return origin[:, None], axis[:, None]

    def expect_keypoints(self, position: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimate where all keypoints of some groups are, from those that were found; see ``estimate_poses``.

        Let u_j = (z_j - o - a h_j) / |a| be the deviations of the n keypoints found, C the covariance of the deviations
        (see the module), C_found its rows and columns for the keypoints found, and c those for keypoint k. The mean and
        the variance of a Gaussian distribution, with the error of the pose itself, are

            o + a h_k + |a| c^T C_found^-1 u    and    |a|^2 (C_kk - c^T C_found^-1 c + POSE_UNCERTAINTY^2 / n).

        Returns:
            (G, K) complex means, and (G, K) roots of the variances, in cells.
        """
        origin, axis = self.estimate_poses(position, found)
        scale = np.maximum(np.abs(axis), 1e-3)
        on_axis = origin + axis * self.height
        u = np.where(found, (position - on_axis) / scale, 0)
        c = self.covariance * found[:, None, :]  # (G, K, K)
        gain = c @ np.linalg.inv(self._covariance_of_found(found, np.zeros(1)))
        variance = np.maximum(self.covariance.diagonal() - (gain * c).sum(axis=2), 0)
        pose_variance = POSE_UNCERTAINTY**2 / found.sum(axis=1, keepdims=True)
        return on_axis + scale * (gain @ u[:, :, None])[:, :, 0], scale * np.sqrt(variance + pose_variance)

    def refine_keypoints(self, keypoints: np.ndarray) -> np.ndarray:
        """Move keypoints with low scores towards where the rest of their person suggests they are.

        With the score c of a keypoint, the mean square error of its position, in squared torso lengths, is taken to be

            t = POSITION_VARIANCE (1 / c - 1)^POSITION_EXPONENT,    0 for c >= 1.

        With u and C_found of ``expect_keypoints`` and T the diagonal matrix of the errors t, the mean of the true
        deviations is

            C_found (C_found + T)^-1 u = u - T (C_found + T)^-1 u.

        People with fewer than ``MIN_FOR_ESTIMATE`` keypoints stay as they are.

        Args:
            keypoints: (P, K, 3) float32, x and y in any unit and score; all 0 where a keypoint was not found.
        """
        people = np.flatnonzero((keypoints[..., 2] > 0).sum(axis=1) >= MIN_FOR_ESTIMATE)
        x, y, score = np.moveaxis(keypoints[people].astype(np.float64), 2, 0)
        position, found = x + 1j * y, score > 0
        origin, axis = self.estimate_poses(position, found)
        u = np.where(found, position - origin - axis * self.height, 0)  # in the unit of the keypoints
        uncertainty = np.maximum(1 / np.where(found, score, 1) - 1, 0)
        error = POSITION_VARIANCE * uncertainty**POSITION_EXPONENT
        real_u = np.stack([u.real, u.imag], axis=2)  # (P, K, 2): a real system is faster than a complex one
        refined = keypoints.copy()
        refined[people, :, :2] -= error[:, :, None] * np.linalg.solve(self._covariance_of_found(found, error), real_u)
        return refined

    def _covariance_of_found(self, found: np.ndarray, error: np.ndarray) -> np.ndarray:
        """(G, K, K) covariance of the keypoints found, with ``error``, (G, K) or (1,), added to the diagonal.

        The rows and columns of keypoints that were not found are those of the identity.
        """
        both_found = found[:, :, None] & found[:, None, :]
        diagonal = np.where(found, error, 1)
        return np.asarray(self.covariance * both_found + np.eye(len(self.height)) * diagonal[:, None, :])

    def length_factor(self, length: np.ndarray, part: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(M,) factors for limb scores: 1, or less for limbs that are too long for their person.

        With r the ratio of a limb's length to its expected length at the person's scale (both in cells), the factor is
        1 - MAX_LENGTH_PENALTY clip(r - 1, 0, 1).
        """
        ratio = length / np.maximum(scale * self.part_length[part], 1e-6)
        return np.asarray(1 - MAX_LENGTH_PENALTY * np.clip(ratio - 1, 0, 1))


pose_model_of = cache(PoseModel)
"""The pose model of a skeleton with a layout, built once."""


def _deviation_covariance(skeleton: Skeleton, spread: np.ndarray) -> np.ndarray:
    """(K, K) covariance of the deviations; see the module."""
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
    variance = INDEPENDENT_VARIANCE - min(0, np.linalg.eigvalsh(correlation)[0])
    covariance = (correlation + variance * np.eye(len(spread))) * np.outer(spread, spread)
    mean_of_sources = np.eye(len(spread))
    for name, (source, other) in skeleton.derived.items():
        mean_of_sources[skeleton.index(name)] = 0
        mean_of_sources[skeleton.index(name), [skeleton.index(source), skeleton.index(other)]] = 0.5
    covariance = mean_of_sources @ covariance @ mean_of_sources.T
    for name in skeleton.derived:
        covariance[skeleton.index(name), skeleton.index(name)] += DERIVED_VARIANCE
    return np.asarray(covariance)
