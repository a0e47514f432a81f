"""Twins: from flip_idx, names and known layouts, or measured on poses; and what is not clear."""

from __future__ import annotations

import numpy as np
import pytest

from posenet.annotations.checks.measured_twins import measure_twins
from posenet.annotations.twins import find_twins
from tests.helpers.seen_poses import CHAIR_TWINS, chairs_from_all_sides, people_from_all_sides, planar_objects

NUMBERED = [f"keypoint_{number}" for number in range(1, 11)]
NO_POSES = np.zeros((0, 10, 3))


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
