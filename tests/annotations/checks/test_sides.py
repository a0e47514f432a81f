"""Twins: from flip_idx, names and known layouts, or measured on poses; and what is not clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from posenet.annotations.checks.measured_twins import measure_twins
from posenet.annotations.reader import read_annotation_file
from posenet.annotations.twins import find_twins
from posenet.skeleton import COCO
from tests.helpers.changed_annotations import Document
from tests.helpers.drawn_data import document, person

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
KITE = [(0, -0.4), (-0.5, 0), (0.5, 0), (0, 0.3), (0, 1)]
PEN = [(0, 0), (0.3, 0), (1, 0)]
NUMBERED = [f"keypoint_{number}" for number in range(1, 11)]
NO_POSES = np.zeros((0, 10, 3))


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


@pytest.mark.parametrize("flip_idx", [None, list(range(10))])
def test_chairs_seen_from_all_sides_show_their_twins(flip_idx: list[int] | None) -> None:
    found = find_twins(NUMBERED, chairs_from_all_sides(600), flip_idx, "chair")
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
    assert (found.mirror, found.pairs) == (True, ())


def test_a_kite_has_two_pairs_and_their_order_is_free() -> None:
    found = find_twins(list("abcde"), planar_objects(KITE, 200))
    assert set(map(frozenset, found.pairs)) == {frozenset("bc")}
    found = find_twins(list("abcde"), planar_objects(KITE, 200), [1, 0, 3, 2, 4])
    assert found.pairs == (("a", "b"), ("c", "d"))


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


def test_pairs_that_the_names_contradict_and_people_with_exchanged_sides_are_named() -> None:
    def sides(number: int, swapped: bool = False) -> Document:
        entry = person(number, 1, (number, 20, 50, 60))
        points = np.reshape(entry["keypoints"], (17, 3))
        points[1::2, 0], points[2::2, 0] = number + 40, number + 5
        if swapped:
            points[[5, 6]] = points[[6, 5]]
        return entry | {"keypoints": points.ravel().tolist()}

    content = document([1], [sides(number, number == 7) for number in range(1, 31)])
    file = read_annotation_file("a.json", COCO, document=content)
    assert {one.code: one.places for one in file.adjustments if one.code in ("swapped-here", "flip-pairs")} == {
        "swapped-here": ["7 (left_shoulder, right_shoulder)"]
    }
    pairs = tuple(pair for pair in COCO.left_right if "left_ear" not in pair)
    other = replace(COCO, left_right=pairs, parts=(), layout={}, drawn=())
    file = read_annotation_file("a.json", other, document=content)
    assert [one.places for one in file.adjustments if one.code == "flip-pairs"] == [["left_ear", "right_ear"]]
