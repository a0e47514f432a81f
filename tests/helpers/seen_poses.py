"""Keypoints of objects as cameras see them, without names or images: (P, K, 3) x, y, visibility."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CHAIR_TWINS = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]
_CHAIR = np.array(
    [
        (-0.5, 0, 0.5), (0.5, 0, 0.5), (-0.5, 0, -0.5), (0.5, 0, -0.5), (-0.5, 1, 0.5), (0.5, 1, 0.5),
        (-0.5, 1, -0.5), (0.5, 1, -0.5), (-0.45, 2.1, -0.6), (0.45, 2.1, -0.6),
    ]
)  # fmt: skip
"""x, y (up) and z of the ends of four legs, the corners of the seat and those of the back."""
_PERSON = np.array(
    [
        (0, 1.6, 0), (0.2, 1.4, 0), (-0.2, 1.4, 0), (0.3, 1.1, 0), (-0.3, 1.1, 0), (0.15, 0.8, 0), (-0.15, 0.8, 0),
        (0.15, 0, 0), (-0.15, 0, 0),
    ]
)  # fmt: skip
"""Nose, and shoulders, elbows, hips and ankles, left before right."""


def chairs_from_all_sides(count: int, degrees: tuple[float, float] = (0, 360), seed: int = 0) -> np.ndarray:
    """Chairs seen from above, turned by these angles; one keypoint of ten is not labelled."""
    rng = np.random.default_rng(seed)
    chairs = []
    for _ in range(count):
        points = _turn(_CHAIR * rng.uniform(0.8, 1.2, 3), rng.uniform(*degrees), rng.uniform(10, 35))
        points = points[:, :2] * [6, -6] / (6 - points[:, 2:])
        is_labelled = rng.random(len(points)) >= 0.1
        chairs.append(_labelled(points + rng.normal(0, 0.02, points.shape), is_labelled, rng))
    return np.array(chairs)


def people_from_all_sides(count: int, front: float, has_face: bool = False, seed: int = 0) -> np.ndarray:
    """People, of whom a share is seen from the front; with a face, the nose is labelled in these alone."""
    rng = np.random.default_rng(seed)
    people = []
    for _ in range(count):
        degrees = rng.uniform(-70, 70) + (0 if rng.random() < front else 180)
        points = _turn(_PERSON + rng.normal(0, 0.1, _PERSON.shape), degrees, rng.uniform(-5, 5))
        is_labelled = np.ones(len(points), bool)
        is_labelled[0] = not has_face or abs(degrees) < 90
        people.append(_labelled(points[:, :2] * [1, -1], is_labelled, rng))
    return np.array(people)


def planar_objects(shape: Sequence[tuple[float, float]], count: int, seed: int = 0) -> np.ndarray:
    """Flat objects that lie on a table, turned by any angle and never turned over."""
    rng = np.random.default_rng(seed)
    objects = []
    for angle in rng.uniform(0, 2 * np.pi, count):
        rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        points = np.array(shape) @ rotation + rng.normal(0, 0.02, (len(shape), 2))
        objects.append(_labelled(points, np.ones(len(shape), bool), rng))
    return np.array(objects)


def _turn(points: np.ndarray, degrees: float, elevation: float) -> np.ndarray:
    """Points turned around the vertical axis, seen from a camera so many degrees above."""
    turn, tilt = np.radians([degrees, elevation])
    around = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
    down = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    return np.asarray(points @ around.T @ down.T)


def _labelled(points: np.ndarray, is_labelled: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(K, 3) keypoints at any size."""
    joints = np.c_[points * rng.uniform(50, 200) + 300, np.full(len(points), 2)]
    return np.where(is_labelled[:, None], joints, 0)
