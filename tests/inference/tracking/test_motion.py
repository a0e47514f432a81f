"""The motion of tracks: prediction, agreement and correction."""

from __future__ import annotations

import numpy as np
import pytest

from posenet.inference.tracking.motion import (
    Motion,
    person_sizes,
)
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import person_at

SIGMAS = np.array(COCO.sigmas)
FOUND = np.ones((1, 17), bool)


def points_at(x: float, **arguments: float) -> np.ndarray:
    return person_at(x, **arguments).to_coco()[None, :, :2].astype(float)


def tracked(speed: float, frames: int = 25, interval: float = 0.04) -> Motion:
    """A track of a person who moves to the right with ``speed`` pixels a second, at x = 100 in the last frame."""
    motion = Motion(SIGMAS)
    motion.add(points_at(100 - speed * interval * frames), FOUND)
    for number in range(frames - 1, -1, -1):
        motion.predict(interval)
        motion.update(np.array([0]), points_at(100 - speed * interval * number), FOUND)
    return motion


@pytest.mark.parametrize("interval", [0.02, 0.04, 0.2])
def test_the_speed_is_learned_at_any_frame_rate(interval: float) -> None:
    motion = tracked(speed=60, interval=interval)
    motion.predict(0.5)
    np.testing.assert_allclose(motion.poses, points_at(130), atol=2)


def test_a_person_who_stops_for_a_moment_may_walk_on_while_not_seen() -> None:
    motion = tracked(speed=60, frames=75)
    for _ in range(10):
        motion.predict(0.04)
        motion.update(np.array([0]), points_at(100), FOUND)
    motion.predict(1.0)
    assert motion.similarity(points_at(130), FOUND)[0][0, 0] > 0.5


def test_sizes_do_not_depend_on_keypoints_that_were_not_found() -> None:
    points = np.zeros((2, 17, 2))
    points[0, :2] = (10, 10), (40, 50)
    found = np.zeros((2, 17), bool)
    found[0, :2] = True
    np.testing.assert_allclose(person_sizes(points + 1000, found), (25, 2.5))
    np.testing.assert_allclose(person_sizes(points / 1000, found), (0.025, 0.0025))
