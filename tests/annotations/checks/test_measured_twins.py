"""Twins: from flip_idx, names and known layouts, or measured on poses; and what is not clear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from posenet.annotations.checks.measured_twins import measure_twins
from posenet.annotations.twins import find_twins

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
NUMBERED = [f"keypoint_{number}" for number in range(1, 11)]
NO_POSES = np.zeros((0, 10, 3))


def chairs_from_all_sides(count: int, degrees: tuple[float, float] = (0, 360)) -> np.ndarray:
    """Chairs seen from above, turned by these angles; one keypoint of ten is not labelled."""
    rng = np.random.default_rng(0)
    chairs = []
    for _ in range(count):
        points = _turn(_CHAIR * rng.uniform(0.8, 1.2, 3), rng.uniform(*degrees), rng.uniform(10, 35))
        points = points[:, :2] * [6, -6] / (6 - points[:, 2:])
        is_labelled = rng.random(len(points)) >= 0.1
        chairs.append(_labelled(points + rng.normal(0, 0.02, points.shape), is_labelled, rng))
    return np.array(chairs)


def people_from_all_sides(count: int, front: float, has_face: bool = False) -> np.ndarray:
    """People, of whom a share is seen from the front; with a face, the nose is labelled in these alone."""
    rng = np.random.default_rng(0)
    people = []
    for _ in range(count):
        degrees = rng.uniform(-70, 70) + (0 if rng.random() < front else 180)
        points = _turn(_PERSON + rng.normal(0, 0.1, _PERSON.shape), degrees, rng.uniform(-5, 5))
        is_labelled = np.ones(len(points), bool)
        is_labelled[0] = not has_face or abs(degrees) < 90
        people.append(_labelled(points[:, :2] * [1, -1], is_labelled, rng))
    return np.array(people)


def planar_objects(shape: Sequence[tuple[float, float]], count: int) -> np.ndarray:
    """Flat objects that lie on a table, turned by any angle and never turned over."""
    rng = np.random.default_rng(0)
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


def pairs_of(names: list[str], flip_idx: list[int]) -> set[frozenset[str]]:
    return {frozenset((names[a], names[b])) for a, b in enumerate(flip_idx) if a < b}


def test_flip_idx_pairs_but_an_identity_says_nothing() -> None:
    found = find_twins(NUMBERED, NO_POSES, CHAIR_TWINS)
    assert found.mirror and "from flip_idx" in found.message
    assert set(map(frozenset, found.pairs)) == pairs_of(NUMBERED, CHAIR_TWINS)
    for nothing in (None, list(range(10)), [1, 1, 0], "1, 0", [0.5] * 10):
        found = find_twins(NUMBERED, NO_POSES, nothing)
        assert (found.mirror, found.pairs) == (False, ())
        assert "keypoint_1" in found.message and len(found.message) <= 160


def test_chairs_seen_from_all_sides_show_their_twins() -> None:
    found = find_twins(NUMBERED, chairs_from_all_sides(600), list(range(10)), "chair")
    assert found.mirror
    assert set(map(frozenset, found.pairs)) == pairs_of(NUMBERED, CHAIR_TWINS)


@pytest.mark.parametrize(
    "poses",
    [chairs_from_all_sides(15), chairs_from_all_sides(300, degrees=(20, 70)), people_from_all_sides(300, front=0.5)],
    ids=["few", "from one side", "people as often from behind"],
)
def test_poses_that_do_not_show_twins_are_not_mirrored(poses: np.ndarray) -> None:
    names = NUMBERED[: poses.shape[1]]
    found = find_twins(names, poses)
    assert (found.mirror, found.pairs) == (False, ())


@pytest.mark.parametrize("has_face, known", [(False, ()), (True, ()), (False, [(1, 2), (3, 4), (5, 6)])])
def test_people_show_their_twins_by_faces_their_number_or_known_pairs(
    has_face: bool, known: list[tuple[int, int]]
) -> None:
    people = people_from_all_sides(400, front=0.5 if has_face else 0.75, has_face=has_face)
    twins = measure_twins(people, known, [7, 8] if known else range(9))
    assert twins is not None and twins.tolist() == [0, 2, 1, 4, 3, 6, 5, 8, 7]


@pytest.mark.parametrize(
    "shape, pairs",
    [
        ([(0, 0), (0.3, 0), (1, 0)], []),
        ([(0, -0.4), (-0.5, 0), (0.5, 0), (0, 0.3), (0, 1)], [{"k1", "k2"}]),
        ([(0, 0), (1, 0)], None),
        ([(0, 0), (1, 0), (1, 1), (0, 1)], None),
        ([(0, 0), (0, 1), (0.5, 1), (0.5, 0.6), (0.7, 0.1)], None),
    ],
    ids=["a pen has no twins", "a kite", "a line", "a square", "a letter"],
)
def test_a_shape_is_mirrored_if_it_has_one_symmetry(
    shape: list[tuple[float, float]], pairs: list[set[str]] | None
) -> None:
    found = find_twins([f"k{number}" for number in range(len(shape))], planar_objects(shape, 200))
    assert found.mirror == (pairs is not None)
    assert list(map(set, found.pairs)) == (pairs or [])


def test_half_paired_names_are_not_mirrored_without_poses_that_show_the_rest() -> None:
    names = ["left_eye", "right_eye", "nose", *(f"spot-{number}" for number in range(5))]
    found = find_twins(names, np.zeros((0, 8, 3)))
    assert found.pairs == (("left_eye", "right_eye"),) and not found.mirror and "5 keypoints" in found.message
    face = find_twins([*names[:3], *(f"face-{number}" for number in range(68))], np.zeros((0, 71, 3)))
    assert len(face.pairs) == 30 and face.mirror
