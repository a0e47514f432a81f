"""Twins: from flip_idx, names and known layouts, or measured on poses; and what is not clear."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from posenet.annotations.checks.measured_twins import measure_twins
from posenet.annotations.twins import find_twins
from tests.helpers.seen_poses import CHAIR_TWINS, chairs_from_all_sides, people_from_all_sides, planar_objects

KITE = [(0, -0.4), (-0.5, 0), (0.5, 0), (0, 0.3), (0, 1)]
PEN = [(0, 0), (0.3, 0), (1, 0)]
NUMBERED = [f"keypoint_{number}" for number in range(1, 11)]
NO_POSES = np.zeros((0, 10, 3))


def pairs_of(names: list[str], flip_idx: list[int]) -> set[frozenset[str]]:
    return {frozenset((names[a], names[b])) for a, b in enumerate(flip_idx) if a < b}


def test_flip_idx_pairs_but_an_identity_says_nothing() -> None:
    found = find_twins(NUMBERED, NO_POSES, CHAIR_TWINS)
    assert (found.source, found.mirror) == ("flip_idx", True)
    assert set(map(frozenset, found.pairs)) == pairs_of(NUMBERED, CHAIR_TWINS)
    for nothing in (None, list(range(10)), [1, 1, 0], "1, 0", [0.5] * 10):
        found = find_twins(NUMBERED, NO_POSES, nothing)
        assert (found.source, found.mirror, found.pairs) == ("none", False, ())
        assert "keypoint_1" in found.message and len(found.message) <= 160


@pytest.mark.parametrize("flip_idx", [None, list(range(10))])
def test_chairs_seen_from_all_sides_show_their_twins(flip_idx: list[int] | None) -> None:
    found = find_twins(NUMBERED, chairs_from_all_sides(600), flip_idx, "chair")
    assert (found.source, found.mirror) == ("measured", True)
    assert set(map(frozenset, found.pairs)) == pairs_of(NUMBERED, CHAIR_TWINS)


@pytest.mark.parametrize(
    "poses",
    [chairs_from_all_sides(15), chairs_from_all_sides(300, degrees=(20, 70)), people_from_all_sides(300, front=0.5)],
    ids=["few", "from one side", "people as often from behind"],
)
def test_poses_that_do_not_show_twins_are_not_mirrored(poses: np.ndarray) -> None:
    names = NUMBERED[: poses.shape[1]]
    found = find_twins(names, poses)
    assert (found.source, found.mirror, found.pairs) == ("none", False, ())


@pytest.mark.parametrize("has_face", [False, True])
def test_people_without_names_show_their_twins_by_faces_or_their_number(has_face: bool) -> None:
    people = people_from_all_sides(400, front=0.5 if has_face else 0.75, has_face=has_face)
    twins = measure_twins(people, (), range(9))
    assert twins is not None and twins.tolist() == [0, 2, 1, 4, 3, 6, 5, 8, 7]


def test_known_pairs_help_to_find_the_others() -> None:
    people = people_from_all_sides(200, front=0.75)
    twins = measure_twins(people, [(1, 2), (3, 4), (5, 6)], [7, 8])
    assert twins is not None and twins.tolist() == [0, 2, 1, 4, 3, 6, 5, 8, 7]


def test_a_pen_has_no_twins_and_is_mirrored() -> None:
    found = find_twins(["tip", "grip", "end"], planar_objects(PEN, 200))
    assert (found.source, found.mirror, found.pairs) == ("measured", True, ())


def test_a_kite_has_two_pairs_and_their_order_is_free() -> None:
    found = find_twins(list("abcde"), planar_objects(KITE, 200))
    assert set(map(frozenset, found.pairs)) == {frozenset("bc")}
    found = find_twins(list("abcde"), planar_objects(KITE, 200), [1, 0, 3, 2, 4])
    assert found.source == "flip_idx" and found.pairs == (("a", "b"), ("c", "d"))


@pytest.mark.parametrize("shape", [[(0, 0), (1, 0)], [(0, 0), (1, 0), (1, 1), (0, 1)]], ids=["line", "square"])
def test_a_shape_with_several_symmetries_shows_nothing(shape: list[tuple[float, float]]) -> None:
    assert not find_twins([f"k{number}" for number in range(len(shape))], planar_objects(shape, 200)).mirror


def test_a_shape_that_is_another_one_in_the_mirror_is_not_mirrored() -> None:
    letter = [(0, 0), (0, 1), (0.5, 1), (0.5, 0.6), (0.7, 0.1)]
    assert not find_twins([f"k{number}" for number in range(5)], planar_objects(letter, 200)).mirror


def test_half_paired_names_are_not_mirrored_without_poses_that_show_the_rest() -> None:
    names = ["left_eye", "right_eye", "nose", *(f"spot-{number}" for number in range(5))]
    found = find_twins(names, np.zeros((0, 8, 3)))
    assert found.pairs == (("left_eye", "right_eye"),) and not found.mirror and "5 keypoints" in found.message
    face = find_twins([*names[:3], *(f"face-{number}" for number in range(68))], np.zeros((0, 71, 3)))
    assert len(face.pairs) == 30 and face.mirror


def test_unlabelled_keypoints_are_no_trouble() -> None:
    poses = chairs_from_all_sides(100)
    poses[:, 3] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_twins(NUMBERED, poses)
        find_twins(NUMBERED, np.zeros((50, 10, 3)))


def test_a_single_keypoint_is_its_own_twin() -> None:
    assert find_twins(["anything"], np.zeros((0, 1, 3))).mirror
