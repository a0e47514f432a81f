"""How the keypoints of one body lie to each other: whether a limb is too long, and whose a stray keypoint is.

A body is described by its origin, about the hips, and its axis, the vector from there as long as the torso and away
from the head; both are complex numbers, x + y i, in map cells. ``Skeleton.layout`` says how far along the axis each
keypoint is expected and how far it strays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posenet.skeleton import Skeleton

UPRIGHT = 0.15
"""How much upright counts against where the keypoints say the head is."""
SLACK = 0.5
"""Torsos that a limb's length may be off, beyond what its keypoints stray: close-ups distort a body."""
STRETCH = 1.0
"""A limb as long as expected, times this, begins to lose; at one more it has lost ``LOSS``."""
LOSS = 0.6
DOUBT = 0.3
"""Torsos by which a body known from one keypoint is misplaced; it falls with the root of their number."""
FAR = 9.0
"""Mean square deviation, in units of its variance, at which keypoints cannot be somebody's."""
GROWN = 2.5
"""A piece whose own scale is larger by this cannot be somebody's."""
UNLIKE = 0.6
"""Standard deviation of the logarithm of a piece's own scale about its owner's."""
WEAK = 0.6
"""Keypoints weaker than this share of somebody's own are not given to them for their place alone."""
ROUNDS = 3
"""How often bodies are measured anew when they have been given something."""
MOST_HOSTS, MOST_PIECES = 40, 120
"""Groups that are looked at, the strongest first."""


@dataclass(frozen=True)
class Bodies:
    """Of G groups of keypoints: (G,) complex ``origin`` and ``axis`` in cells, ``count`` of keypoints."""

    origin: np.ndarray
    axis: np.ndarray
    count: np.ndarray

    @property
    def scale(self) -> np.ndarray:
        """(G,) length of the torso in cells; 0 for single keypoints."""
        return np.abs(self.axis)


class Anatomy:
    """What ``skeleton.layout`` says, as arrays; made once for a skeleton."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.height, self.spread = np.array([skeleton.layout[name] for name in skeleton.keypoints]).T
        a, b = skeleton.part_ends.T
        self.part_length = np.sqrt(
            (self.height[a] - self.height[b]) ** 2 + self.spread[a] ** 2 + self.spread[b] ** 2 + SLACK**2
        )

    def measure(self, place: np.ndarray, keypoint: np.ndarray, label: np.ndarray) -> Bodies:
        """Origin and axis of groups of keypoints, N in all.

        The scale is the one at which all distances between the keypoints have their expected mean square; the
        direction is that of the regression of places on expected heights, drawn towards upright.

        Args:
            place: (N,) complex, in cells.
            keypoint: (N,) which keypoint each is.
            label: (N,) its group.
        """
        height, spread = self.height[keypoint], self.spread[keypoint]
        weight = 1 / (spread**2 + 0.05)
        plain = np.stack(
            [
                np.ones_like(height),
                place.real,
                place.imag,
                np.abs(place) ** 2,
                height,
                height**2,
                spread**2,
                weight,
                weight * place.real,
                weight * place.imag,
                weight * height,
                weight * height * place.real,
                weight * height * place.imag,
            ]
        )
        sums = np.zeros((len(plain), label.max() + 1))
        np.add.at(sums.T, label, plain.T)
        count, x, y, square, heights, height2, spread2, total, wx, wy, wh, hx, hy = sums
        actual = count * square - x**2 - y**2
        expected = count * height2 - heights**2 + (count - 1) * spread2
        scale = np.sqrt(np.maximum(actual, 0) / np.maximum(expected, 1e-9)) * (count > 1)
        total = np.maximum(total, 1e-9)  # groups without keypoints
        centre, level = (wx + 1j * wy) / total, wh / total
        slope = (hx + 1j * hy) / total - level * centre + 1j * (UPRIGHT * scale + 1e-9)
        axis = scale * slope / np.maximum(np.abs(slope), 1e-9)
        return Bodies(centre - axis * level, axis, count)

    def likely_length(self, length: np.ndarray, part: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(M,) between 1 - ``LOSS`` and 1: how well limbs of this length, in cells, fit bodies of this scale."""
        excess = length / np.maximum(scale * self.part_length[part], 1e-6) - STRETCH
        return 1 - LOSS * np.clip(excess, 0, 1)

    def adopt(self, place: np.ndarray, keypoint: np.ndarray, score: np.ndarray, label: np.ndarray) -> np.ndarray:
        """Give groups that no body part joins to those people whose body they fit best.

        An arm without its shoulder, or a face without one, finds its person so.

        Args:
            score: (N,) of the keypoints.

        Returns:
            (N,) new labels, not consecutive.
        """
        label = label.copy()
        for _ in range(ROUNDS):
            cost, pieces, hosts = self._costs(place, keypoint, score, label)
            order = np.argsort(cost, axis=None, kind="stable")[: np.isfinite(cost).sum()]
            if not len(order):
                break
            kinds = np.zeros(len(label), object)
            np.bitwise_or.at(kinds, label, [1 << kind for kind in keypoint.tolist()])
            given: dict[int, int] = {}
            taken: set[int] = set()
            for piece, host in zip(pieces[order // len(hosts)].tolist(), hosts[order % len(hosts)].tolist()):
                # Who has been given away takes nothing, and who has taken something is measured anew first.
                if piece not in given and piece not in taken and host not in given and not kinds[piece] & kinds[host]:
                    given[piece] = host
                    taken.add(host)
                    kinds[host] |= kinds[piece]
            for piece, host in given.items():
                label[label == piece] = host
        return label

    def _costs(
        self, place: np.ndarray, keypoint: np.ndarray, score: np.ndarray, label: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P, H) negative log likelihood that pieces are parts of hosts, infinite where impossible; both labels."""
        total = np.bincount(label, score)
        count = np.bincount(label)
        mean = total / np.maximum(count, 1)
        ranked = np.argsort(-total, kind="stable")
        hosts = ranked[count[ranked] > 1][:MOST_HOSTS]
        least = WEAK * mean[hosts].min(initial=np.inf)
        pieces = ranked[(count[ranked] > 0) & (mean[ranked] >= least)][:MOST_PIECES]
        has = np.zeros((len(total), len(self.height)), np.float32)
        has[label, keypoint] = 1
        possible = (
            (has[pieces] @ has[hosts].T == 0)
            & (total[pieces, None] <= total[hosts])
            & (mean[pieces, None] >= WEAK * mean[hosts])
            & (pieces[:, None] != hosts)
        )
        if not possible.any():
            return np.empty((0, 0)), pieces[:0], hosts[:0]

        bodies = self.measure(place, keypoint, label)
        row = np.full(len(total), -1)
        row[pieces] = np.arange(len(pieces))
        member = np.flatnonzero(row[label] >= 0)
        kind, scale = keypoint[member], np.maximum(bodies.scale[hosts], 1e-3)
        sigma = scale * np.sqrt(self.spread[kind, None] ** 2 + DOUBT**2 / bodies.count[hosts])
        square = np.abs(place[member, None] - bodies.origin[hosts] - bodies.axis[hosts] * self.height[kind, None]) ** 2
        square = _mean_of(square / sigma**2, row[label[member]], len(pieces))
        growth = np.log(np.maximum(bodies.scale[pieces, None], 1e-3) / scale) * (count[pieces, None] > 1)
        possible &= (square <= FAR) & (growth <= np.log(GROWN))
        cost = square + 2 * _mean_of(np.log(sigma), row[label[member]], len(pieces)) + growth**2 / (2 * UNLIKE**2)
        return np.where(possible, cost, np.inf), pieces, hosts


def _mean_of(values: np.ndarray, row: np.ndarray, count: int) -> np.ndarray:
    """Mean of the (N, H) values of each of ``count`` rows."""
    chosen = (np.arange(count)[:, None] == row).astype(values.dtype)
    return chosen @ values / chosen.sum(1, keepdims=True)
