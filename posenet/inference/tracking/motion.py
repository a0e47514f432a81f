"""Predict where tracked people are in the next frame, compare people with the predictions, and smooth keypoints.

A track has a pose: its keypoints as last seen. The pose moves as a whole with one velocity, which a Kalman filter
estimates: limbs swing back and forth. Noise and tolerances are in units of the person's size (``person_sizes``).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from posenet.person import Person

KEEP_SECONDS = 2.0
"""How long a person who is not seen keeps the id, at most; someone who was seen for a moment keeps it for less."""
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
SMOOTH_CUTOFF = 0.5
"""Cutoff frequency in Hz of the filter of a still keypoint; lower is smoother."""
SMOOTH_SPEED = 2.5
"""Rise of the cutoff frequency, in Hz, with the square of the speed, in person sizes per second; a higher value has
less lag. docs/notes/tracking.md has the measurements behind both."""
SPEED_CUTOFF = 1.0
"""Cutoff frequency of the filter of the speed, in Hz, as Casiez et al. recommend."""


class Motion:
    """The poses of T tracks and their motion; ``sigmas`` are the (F,) OKS constants of the keypoints."""

    def __init__(self, sigmas: np.ndarray) -> None:
        self._tolerance = (2 * sigmas) ** 2
        count = len(sigmas)
        fields = [
            ("pose", float, (count, 2)),  # x and y of the keypoints, in pixels
            ("known", bool, count),  # which keypoints were ever found
            ("velocity", float, 2),  # pixels per second
            ("covariance", float, (2, 2)),  # of position and velocity, on each axis, in sizes
            ("square_speed", float),  # usual square of the speed, on each axis, in sizes per second
            ("unseen", float),  # seconds since the last sighting
        ]
        self.tracks = np.zeros(0, fields)
        """(T,) records."""

    def keep(self, rows: np.ndarray) -> None:
        """Keep only the tracks of these rows."""
        self.tracks = self.tracks[rows]

    def add(self, points: np.ndarray, found: np.ndarray) -> None:
        """Start tracks for (N, F, 2) keypoints, of which (N, F) were found."""
        new = np.zeros(len(points), self.tracks.dtype)
        new["pose"] = points
        new["known"] = found
        new["covariance"] = np.diag([POSITION_NOISE**2, INITIAL_SPEED**2])
        new["square_speed"] = INITIAL_SPEED**2
        self.tracks = np.concatenate([self.tracks, new])

    def predict(self, seconds: float) -> None:
        """Move all tracks on in time, with constant velocity and white-noise acceleration."""
        step = np.array([[1, seconds], [0, 1]])
        noise = np.array([[seconds**3 / 3, seconds**2 / 2], [seconds**2 / 2, seconds]])
        self.tracks["pose"] += seconds * self.tracks["velocity"][:, None]
        self.tracks["covariance"] = step @ self.tracks["covariance"] @ step.T + ACCELERATION**2 * noise
        self.tracks["unseen"] += seconds

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
        poses, known = self.tracks["pose"], self.tracks["known"]
        both = known[:, None] & found[None]
        count = np.maximum(both.sum(2), 1)
        offsets = (points[None] - poses[:, None]) / person_sizes(poses, known)[:, None, None, None]
        offsets *= both[..., None]
        mean = offsets.sum(2) / count[..., None]
        distances = np.square(offsets - mean[:, :, None]).sum(3)
        shape = (np.exp(distances / (-2 * self._tolerance)) * both).sum(2) / (count + 1)
        tolerance = self._tolerance.mean()
        reach = POSITION_NOISE + np.sqrt(self.tracks["square_speed"]) * self.tracks["unseen"]
        spread = tolerance + np.minimum(self.tracks["covariance"][:, 0, 0], reach**2)[:, None]
        agreement = shape * np.exp(-np.square(mean).sum(2) / (2 * spread))
        return agreement, agreement * tolerance / spread

    def update(self, rows: np.ndarray, points: np.ndarray, found: np.ndarray) -> None:
        """Correct the tracks of N rows by the (N, F, 2) keypoints of their people, of which (N, F) were found."""
        seen = self.tracks[rows]
        poses, covariances = seen["pose"], seen["covariance"].copy()
        both = seen["known"] & found
        count = np.maximum(both.sum(1), 1)[:, None]
        innovation = ((points - poses) * both[..., None]).sum(1) / count
        gains = covariances[:, :, 0] / (covariances[:, :1, 0] + POSITION_NOISE**2)
        poses += (gains[:, :1] * innovation)[:, None]
        poses += np.where(both, SHAPE_GAIN, found)[..., None] * (points - poses)
        seen["known"] |= found
        seen["velocity"] += gains[:, 1:] * innovation
        seen["covariance"] -= gains[:, :, None] * covariances[:, :1]
        speeds = seen["velocity"] / person_sizes(poses, seen["known"])[:, None]
        weight = seen["unseen"] / (seen["unseen"] + SPEED_MEMORY)
        seen["square_speed"] += weight * (np.square(speeds).mean(axis=1) - seen["square_speed"])
        seen["unseen"] = 0
        self.tracks[rows] = seen


def person_sizes(points: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(N,) half the diagonal of the box around the keypoints found, at least ``MIN_SIZE_SHARE`` of their median."""
    low = np.where(found[..., None], points, np.inf).min(1)
    high = np.where(found[..., None], points, -np.inf).max(1)
    diagonals = np.linalg.norm(high - low, axis=1)  # infinite for a person without keypoints
    sizes: np.ndarray = np.where(np.isfinite(diagonals), diagonals / 2, 0)
    known = sizes[sizes > 0]
    smallest = MIN_SIZE_SHARE * float(np.median(known)) if len(known) else UNKNOWN_SIZE
    return np.asarray(np.maximum(sizes, smallest))


class Smoother:
    """One Euro filters of all keypoints of people with an ``id`` (Casiez, Roussel, Vogel: "1€ Filter", CHI 2012).

    A low-pass filter whose cutoff frequency rises with the speed: it smooths what is still and follows what moves. With
    x the position of a keypoint, dt the time since it was last found, and s the size (``person_sizes``):

        a(f) = 1 / (1 + 1 / (2 pi f dt))                        weight of the newest value at cutoff frequency f
        v <- v + a(SPEED_CUTOFF) ((x - x_smooth) / (s dt) - v)  in sizes per second
        x_smooth <- x_smooth + a(SMOOTH_CUTOFF + SMOOTH_SPEED |v|^2) (x - x_smooth)

    Casiez et al. have |v| in place of |v|^2. The square keeps low speeds, which are only jitter, from opening the
    filter: where as much jitter is left, it halves the lag.
    """

    def __init__(self) -> None:
        self._states: dict[int | None, np.ndarray] = {}
        """For each id (K, 5): x and y smoothed, v, and when the keypoint was last found, -inf before that."""

    def update(self, people: Sequence[Person], time: float) -> list[Person]:
        """The people, who have an ``id``, with smoothed positions of the keypoints found at ``time``, in seconds."""
        if not people:
            return []
        keypoints = np.stack([person.keypoints for person in people])  # (P, K, 3)
        found = keypoints[..., 2:] > 0
        unknown = np.tile((0.0, 0.0, 0.0, 0.0, -np.inf), (keypoints.shape[1], 1))
        states = np.stack([self._states.get(person.id, unknown) for person in people])
        points, velocities, last_found = np.split(states, (2, 4), axis=2)  # views: changing them changes the states
        elapsed = time - last_found  # (P, K, 1)
        is_known = np.isfinite(elapsed) & (elapsed > 0)
        elapsed[~is_known] = 1.0
        offsets = keypoints[..., :2] - points
        speeds = offsets / elapsed / person_sizes(keypoints[..., :2], found[..., 0])[:, None, None]
        velocities += found * is_known * _weight(SPEED_CUTOFF, elapsed) * (speeds - velocities)
        squared_speed = np.square(velocities).sum(2, keepdims=True)
        cutoff = SMOOTH_CUTOFF + SMOOTH_SPEED * squared_speed
        points += found * np.where(is_known, _weight(cutoff, elapsed), 1) * offsets
        last_found[found] = time
        keypoints[..., :2] = np.where(found, points, keypoints[..., :2])
        # States of people who are gone are dropped; their keypoints were found too long ago to be of use.
        self._states = {id: state for id, state in self._states.items() if time - state[:, 4].max() <= KEEP_SECONDS}
        self._states.update((person.id, state) for person, state in zip(people, states))
        return [dataclasses.replace(person, keypoints=values) for person, values in zip(people, keypoints)]


def _weight(cutoff: float | np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """Weight of the newest value in a low-pass filter with a cutoff frequency in Hz."""
    return np.asarray(1 / (1 + 1 / (2 * np.pi * cutoff * elapsed)))
