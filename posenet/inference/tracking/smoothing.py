"""Removes the jitter of keypoints without lag."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from posenet.inference.tracking.motion import person_sizes
from posenet.person import Person

KEEP_SECONDS = 2.0
"""How long a person who is not seen keeps the id, at most; someone who was seen for a moment keeps it for less."""
SMOOTH_CUTOFF = 0.5
"""Cutoff frequency in Hz of the filter of a still keypoint; lower is smoother."""
SMOOTH_SPEED = 2.5
"""Rise of the cutoff frequency, in Hz, with the square of the speed, in person sizes per second; a higher value has
less lag. docs/notes/tracking.md has the measurements behind both."""
SPEED_CUTOFF = 1.0
"""Cutoff frequency of the filter of the speed, in Hz, as Casiez et al. recommend."""


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
        self._states: dict[int, np.ndarray] = {}
        """For each id (K, 5): x and y smoothed, v, and when the keypoint was last found, -inf before that."""

    def update(self, people: Sequence[Person], time: float) -> list[Person]:
        """The people, who have an ``id``, with smoothed positions of the keypoints found at ``time``, in seconds."""
        if not people:
            return []
        keypoints = np.stack([person.keypoints for person in people])  # (P, K, 3)
        found = keypoints[..., 2:] > 0
        unknown = np.tile((0.0, 0.0, 0.0, 0.0, -np.inf), (keypoints.shape[1], 1))
        states = np.stack([self._states.get(person.id or 0, unknown) for person in people])
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
        self._states.update((person.id or 0, state) for person, state in zip(people, states))
        return [dataclasses.replace(person, keypoints=values) for person, values in zip(people, keypoints)]


def _weight(cutoff: float | np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """Weight of the newest value in a low-pass filter with a cutoff frequency in Hz."""
    weight: np.ndarray = 1 / (1 + 1 / (2 * np.pi * cutoff * elapsed))
    return weight
