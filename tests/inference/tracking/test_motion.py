"""The motion of tracks: prediction, agreement and correction."""

from __future__ import annotations

import numpy as np
import pytest

from posenet.inference.tracking.motion import (
    ACCELERATION,
    INITIAL_SPEED,
    POSITION_NOISE,
    SHAPE_GAIN,
    SPEED_MEMORY,
    Motion,
    person_sizes,
)
from posenet.skeleton import COCO
from tests.helpers.moving_people import person_at

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


def test_two_tracks_are_predicted_compared_and_corrected_as_the_formulas_say() -> None:
    """Computed here for one track at a time. Keypoints are lost and move apart; one of the tracks is seen each time."""
    rng = np.random.default_rng(0)
    tolerance = (2 * SIGMAS) ** 2
    people = np.concatenate([points_at(100), points_at(300, size=0.8)])
    found = rng.random((2, 17)) < 0.8
    motion = Motion(SIGMAS)
    motion.add(people.copy(), found)
    poses, known, velocities = people.copy(), found.copy(), np.zeros((2, 2))
    covariances = np.tile(np.diag([POSITION_NOISE**2, INITIAL_SPEED**2]), (2, 1, 1))
    square_speeds, unseen = np.full(2, INITIAL_SPEED**2), np.zeros(2)
    for row, seconds in ((0, 0.1), (0, 0.2), (1, 1.0), (0, 0.04), (1, 0.3)):
        motion.predict(seconds)
        step = np.array([[1, seconds], [0, 1]])
        noise = ACCELERATION**2 * np.array([[seconds**3 / 3, seconds**2 / 2], [seconds**2 / 2, seconds]])
        poses += seconds * velocities[:, None]
        covariances = step @ covariances @ step.T + noise
        unseen += seconds
        people += rng.normal(0, 6, (2, 1, 2)) + rng.normal(0, 2, (2, 17, 2))
        found = rng.random((2, 17)) < 0.8
        agreement, likelihood = motion.similarity(people, found)
        for track in range(2):
            reach = POSITION_NOISE + unseen[track] * np.sqrt(square_speeds[track])
            spread = tolerance.mean() + min(covariances[track, 0, 0], reach**2)
            for person in range(2):
                both = known[track] & found[person]
                offsets = (people[person] - poses[track])[both] / person_sizes(poses, known)[track]
                mean = offsets.mean(axis=0)
                shape = np.exp(-((offsets - mean) ** 2).sum(axis=1) / (2 * tolerance[both])).sum() / (both.sum() + 1)
                expected = shape * np.exp(-(mean**2).sum() / (2 * spread))
                assert agreement[track, person] == pytest.approx(expected)
                assert likelihood[track, person] == pytest.approx(expected * tolerance.mean() / spread)
        motion.update(np.array([row]), people[[row]], found[[row]])
        both = known[row] & found[row]
        offset = (people[row] - poses[row])[both].mean(axis=0)
        gain = covariances[row, :, 0] / (covariances[row, 0, 0] + POSITION_NOISE**2)
        poses[row] += gain[0] * offset
        share = np.where(both, SHAPE_GAIN, found[row])[:, None]
        poses[row] = (1 - share) * poses[row] + share * people[row]
        known[row] |= found[row]
        velocities[row] += gain[1] * offset
        covariances[row] = (np.eye(2) - np.outer(gain, [1, 0])) @ covariances[row]
        weight = unseen[row] / (unseen[row] + SPEED_MEMORY)
        speed = velocities[row] / person_sizes(poses[[row]], known[[row]])
        square_speeds[row] = (1 - weight) * square_speeds[row] + weight * (speed**2).mean()
        unseen[row] = 0
        np.testing.assert_allclose(motion.poses, poses)
        np.testing.assert_array_equal(motion.known, known)


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
