"""The motion of tracks: prediction, agreement and correction; and keypoints without jitter or lag."""

import dataclasses

import numpy as np
import pytest

from posenet.inference.tracking.motion import Motion, Smoother, person_sizes
from posenet.person import Person
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
    np.testing.assert_allclose(motion.tracks["pose"], points_at(130), atol=2)


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


def smoothed(people: list[Person], rate: float = 25.0) -> np.ndarray:
    """(F, K, 3) keypoints after smoothing."""
    smoother = Smoother()
    return np.stack(
        [
            smoother.update([dataclasses.replace(person, id=1)], number / rate)[0].keypoints
            for number, person in enumerate(people)
        ]
    )


def size_of(person: Person) -> float:
    return float(person_sizes(person.keypoints[None, :, :2], person.found[None])[0])


@pytest.mark.parametrize("size", [0.2, 1.5])
@pytest.mark.parametrize("jitter", [0.01, 0.03, 0.05])
def test_the_jitter_of_a_still_person_is_halved(jitter: float, size: float) -> None:
    rng = np.random.default_rng(0)
    noise = jitter * size_of(person_at(100, size=size)) * rng.standard_normal((300, 18, 2))
    people = [person_at(100, size=size, noise=offset) for offset in noise]
    assert smoothed(people)[50:, :, :2].std(0).mean() < 0.5 * noise[50:].std(0).mean()


@pytest.mark.parametrize("rate", [15.0, 30.0, 60.0])
def test_a_walking_person_lags_less_than_a_frame(rate: float) -> None:
    speed = 1.6 * size_of(person_at(0))  # 0.8 standing heights a second
    people = [person_at(number / rate * speed) for number in range(100)]
    lag = (people[-1].keypoints - smoothed(people, rate)[-1])[:, 0] * rate / speed
    assert 0 < lag.max() < 1


def test_a_keypoint_that_is_not_found_stays_so_and_starts_again_after_a_gap() -> None:
    people = [person_at(100) for _ in range(40)]
    for person in people[10:30]:
        person.keypoints[5] = 0
    for person in people[30:]:
        person.keypoints[5, :2] += 30
    keypoints = smoothed(people)
    np.testing.assert_array_equal(keypoints[10:30, 5], 0)
    assert np.abs(keypoints[31, 5, :2] - people[31].keypoints[5, :2]).max() < 6


def test_people_are_smoothed_by_their_id() -> None:
    smoother = Smoother()
    for number in range(30):
        people = [dataclasses.replace(person_at(100), id=7), dataclasses.replace(person_at(400 + number), id=3)]
        first, second = smoother.update(people if number % 2 else people[::-1], number / 25)[:: 1 if number % 2 else -1]
    np.testing.assert_allclose(first.keypoints, person_at(100).keypoints, atol=1e-3)
    assert np.abs(second.keypoints[:, 0] - person_at(429).keypoints[:, 0]).max() < 2


def test_two_frames_at_one_time() -> None:
    smoother = Smoother()
    for _ in range(2):
        (person,) = smoother.update([dataclasses.replace(person_at(100), id=1)], 1.0)
    np.testing.assert_array_equal(person.keypoints, person_at(100).keypoints)
