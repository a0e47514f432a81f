"""Predict where tracked people are in the next frame, and compare the people found there with the predictions.

A track has a pose: its keypoints as last seen. The pose moves as a whole with one velocity, which a Kalman filter
estimates: limbs swing back and forth. Noise and tolerances are in units of the person's size (``person_sizes``).
"""

from __future__ import annotations

import numpy as np

MIN_SIZE_SHARE = 0.1
"""Smallest size of a person, as a share of the median size of the people beside it. The box around one or two keypoints
says little about the size of the person."""
UNKNOWN_SIZE = 8.0
"""Size, in pixels, of people who have one keypoint each, where nobody's size is known."""
POSITION_NOISE = 0.03
"""Standard deviation of a person's observed position, in sizes."""
INITIAL_SPEED = 1.5
"""Standard deviation of the speed of a person who was seen only once, in sizes per second."""
ACCELERATION = 1.0
"""Standard deviation of the change of the velocity in one second, in sizes per second."""
SPEED_MEMORY = 1.0
"""Seconds for which the speeds of a person count in its usual speed."""
SHAPE_GAIN = 0.5
"""Share of the new position of a keypoint that comes from the newest frame, once the pose has moved as a whole."""


class Motion:
    """The poses of T tracks and their motion; ``sigmas`` are the (F,) OKS constants of the keypoints."""

    def __init__(self, sigmas: np.ndarray) -> None:
        self._tolerance = (2 * sigmas) ** 2
        self.poses = np.zeros((0, len(sigmas), 2))
        """(T, F, 2) x and y of the keypoints, in pixels."""
        self.known = np.zeros((0, len(sigmas)), bool)
        """(T, F) which keypoints were ever found."""
        self._velocities = np.zeros((0, 2))  # pixels per second
        self._covariances = np.zeros((0, 2, 2))  # of position and velocity, on each axis, in sizes
        self._square_speeds = np.zeros(0)  # usual square of the speed, on each axis, in sizes per second
        self._unseen = np.zeros(0)  # seconds since the last sighting

    def keep(self, rows: np.ndarray) -> None:
        """Keep only the tracks of these rows."""
        self.poses = self.poses[rows]
        self.known = self.known[rows]
        self._velocities = self._velocities[rows]
        self._covariances = self._covariances[rows]
        self._square_speeds = self._square_speeds[rows]
        self._unseen = self._unseen[rows]

    def add(self, points: np.ndarray, found: np.ndarray) -> None:
        """Start tracks for (N, F, 2) keypoints, of which (N, F) were found."""
        count = len(points)
        start = np.diag([POSITION_NOISE**2, INITIAL_SPEED**2])
        self.poses = np.concatenate([self.poses, points])
        self.known = np.concatenate([self.known, found])
        self._velocities = np.concatenate([self._velocities, np.zeros((count, 2))])
        self._covariances = np.concatenate([self._covariances, np.tile(start, (count, 1, 1))])
        self._square_speeds = np.concatenate([self._square_speeds, np.full(count, INITIAL_SPEED**2)])
        self._unseen = np.concatenate([self._unseen, np.zeros(count)])

    def predict(self, seconds: float) -> None:
        """Move all tracks on in time, with constant velocity and white-noise acceleration."""
        step = np.array([[1, seconds], [0, 1]])
        noise = np.array([[seconds**3 / 3, seconds**2 / 2], [seconds**2 / 2, seconds]])
        self.poses += seconds * self._velocities[:, None]
        self._covariances = step @ self._covariances @ step.T + ACCELERATION**2 * noise
        self._unseen += seconds

    def similarity(self, points: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T, P) agreement, 0-1, of each track with each of P people, and (T, P) likelihood.

        With d_k the offset of keypoint k from its predicted position, m the mean offset over the n keypoints that both
        have, s the track's size, v_k = (2 sigma_k)^2 the tolerance of OKS, and V the mean of v_k,

            shape = mean_k exp(-|d_k - m|^2 / (2 s^2 v_k)) * n / (n + 1)
            motion = exp(-|m|^2 / (2 s^2 (V + p)))

        p is the variance of the predicted position, in sizes. It is at most the square of how far the person goes at
        its usual speed while it is not seen: somebody who stands still is expected at the same place.

        ``shape`` is the OKS after the prediction has moved onto the person; few keypoints prove little. The agreement
        is ``shape * motion``, and the likelihood is the agreement times V / (V + p): of two tracks with the same
        agreement, the one with the more certain position is more likely. ``points`` are (P, F, 2), ``found`` (P, F).
        """
        both = self.known[:, None] & found[None]
        count = np.maximum(both.sum(2), 1)
        offsets = (points[None] - self.poses[:, None]) / person_sizes(self.poses, self.known)[:, None, None, None]
        offsets *= both[..., None]
        mean = offsets.sum(2) / count[..., None]
        distances = np.square(offsets - mean[:, :, None]).sum(3)
        shape = (np.exp(distances / (-2 * self._tolerance)) * both).sum(2) / (count + 1)
        tolerance = self._tolerance.mean()
        reach = POSITION_NOISE + np.sqrt(self._square_speeds) * self._unseen
        spread = tolerance + np.minimum(self._covariances[:, 0, 0], reach**2)[:, None]
        agreement = shape * np.exp(-np.square(mean).sum(2) / (2 * spread))
        return agreement, agreement * tolerance / spread

    def update(self, rows: np.ndarray, points: np.ndarray, found: np.ndarray) -> None:
        """Correct the tracks of N rows by the (N, F, 2) keypoints of their people, of which (N, F) were found."""
        poses = self.poses[rows]
        both = self.known[rows] & found
        count = np.maximum(both.sum(1), 1)[:, None]
        innovation = ((points - poses) * both[..., None]).sum(1) / count
        covariances = self._covariances[rows]
        gains = covariances[:, :, 0] / (covariances[:, :1, 0] + POSITION_NOISE**2)
        poses += (gains[:, :1] * innovation)[:, None]
        poses += np.where(both, SHAPE_GAIN, found)[..., None] * (points - poses)
        self.poses[rows] = poses
        self.known[rows] |= found
        self._velocities[rows] += gains[:, 1:] * innovation
        self._covariances[rows] -= gains[:, :, None] * covariances[:, :1]
        speeds = self._velocities[rows] / person_sizes(poses, self.known[rows])[:, None]
        weight = self._unseen[rows] / (self._unseen[rows] + SPEED_MEMORY)
        self._square_speeds[rows] += weight * (np.square(speeds).mean(axis=1) - self._square_speeds[rows])
        self._unseen[rows] = 0


def person_sizes(points: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(N,) half the diagonal of the box around the keypoints found, at least ``MIN_SIZE_SHARE`` of their median."""
    low = np.where(found[..., None], points, np.inf).min(1)
    high = np.where(found[..., None], points, -np.inf).max(1)
    diagonals = np.linalg.norm(high - low, axis=1)  # infinite for a person without keypoints
    sizes: np.ndarray = np.where(np.isfinite(diagonals), diagonals / 2, 0)
    known = sizes[sizes > 0]
    smallest = MIN_SIZE_SHARE * float(np.median(known)) if len(known) else UNKNOWN_SIZE
    return np.asarray(np.maximum(sizes, smallest))
