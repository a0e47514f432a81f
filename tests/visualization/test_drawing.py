"""Drawings of people."""

import dataclasses

import cv2
import numpy as np
import pytest

from posenet.person import Person
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table
from posenet.visualization.drawing import LEFT, MIDDLE, PALETTE, RIGHT, draw_people
from tests.helpers.rendered_maps import person_at, standing_person

BLACK = np.zeros((384, 512, 3), np.uint8)


def has_colour(image, colour):
    return np.abs(image.astype(int) - colour).max(axis=2) <= 2


def between(person, a, b):
    """The pixel between two keypoints."""
    return np.rint(person.keypoints[[COCO.index(a), COCO.index(b)], :2].mean(axis=0)).astype(int)


@pytest.fixture
def person():
    return Person(standing_person(250, 190), 0.9)


def test_keypoints_of_faces_and_fingers_do_not_cover_each_other():
    """One every three pixels, in turn of the left and of the right, in a person as large as the image."""
    names = [f"{side}_{number}" for number in range(30) for side in ("left", "right")]
    pairs = [[f"left_{number}", f"right_{number}"] for number in range(30)]
    chains = [[f"{side}_{n}", f"{side}_{n + 1}"] for n in range(29) for side in ("left", "right")]
    skeleton = skeleton_from_table({"keypoints": [*names, "top"], "left_right": pairs, "parts": [
        *pairs, *chains, ["top", "left_0"], ["top", "right_0"],
    ]})  # fmt: skip
    points = [(100 + 3 * index, 300, 0.9) for index in range(60)]
    drawn = draw_people(BLACK, [Person(np.float32([*points, (250, 10, 0.9)]), 0.9, skeleton)])
    for index, (x, y, _) in enumerate(points[4:], 4):
        assert has_colour(drawn[y : y + 1, x : x + 1], (LEFT, RIGHT)[index % 2]).all()


@pytest.mark.parametrize("background", [0, 255])
def test_sides_are_distinct_on_dark_and_light_images(person, background):
    image = np.full((384, 512, 3), background, np.uint8)
    drawn = draw_people(image, [person])
    assert (image == background).all()
    left, right, middle = (has_colour(drawn, colour) for colour in (LEFT, RIGHT, MIDDLE))
    assert min(left.sum(), right.sum(), middle.sum()) > 50
    wrist, ankle = person.keypoints[COCO.index("left_wrist")], person.keypoints[COCO.index("right_ankle")]
    assert left[round(float(wrist[1])), round(float(wrist[0]))]
    assert right[round(float(ankle[1])), round(float(ankle[0]))]
    limbs = (("left_knee", "left_ankle", left), ("right_knee", "right_ankle", right), ("neck", "nose", middle))
    for a, b, is_colour in limbs:
        x, y = between(person, a, b)
        assert is_colour[y, x], (a, b)


def test_what_was_not_found_or_has_a_low_score_is_not_drawn(person):
    assert not draw_people(BLACK, [person], min_score=0.95).any()
    assert draw_people(BLACK, [person], min_score=0.9, keypoint_min_score=1.0).any()
    x, y, _ = ankle = person.keypoints[COCO.index("left_ankle")]
    person.keypoints[COCO.index("right_ankle"), 2] = 0
    for score, is_drawn in ((0.6, True), (0.4, False), (0, False)):  # half of the mean of those found is the limit
        ankle[2] = score
        drawn = draw_people(BLACK, [person])
        assert drawn[int(y) - 10 : int(y) + 10, int(x) - 8 : int(x) + 8].any() == is_drawn


def test_a_notebook_shows_a_drawing_as_a_png():
    drawing = draw_people(np.full((20, 30, 3), 90, np.uint8), [])
    png = np.frombuffer(drawing._repr_png_(), np.uint8)
    assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR), drawing)
    assert drawing[:0]._repr_png_() is None and drawing[0]._repr_png_() is None and (drawing / 2)._repr_png_() is None


def test_rgb_arrays_are_drawn_as_bgr():
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    assert np.array_equal(draw_people(image[..., ::-1], [], channels="rgb"), image)


def test_without_sides_each_person_has_a_colour_and_the_first_is_on_top():
    table = {"keypoints": ["a", "b", "c"], "parts": [["a", "b"], ["b", "c"]]}
    position = np.array([[20, 20, 1], [80, 20, 1], [80, 80, 1]])
    people = [Person(position + [x, 0, 0], 0.5, skeleton_from_table(table)) for x in (0, 60)]
    drawn = draw_people(np.zeros((100, 200, 3), np.uint8), people)
    assert drawn[20, 80].tolist() == drawn[80, 80].tolist() == list(PALETTE[0])
    assert drawn[20, 140].tolist() == drawn[80, 140].tolist() == list(PALETTE[1])


def test_people_are_numbered_on_request_in_their_order_or_by_their_id(monkeypatch):
    written = []
    put_text = cv2.putText
    monkeypatch.setattr(cv2, "putText", lambda image, text, *rest: (written.append(text), put_text(image, text, *rest)))
    people = [person_at(150), dataclasses.replace(person_at(450), id=7)]
    assert not np.array_equal(draw_people(BLACK, people, numbers=True), draw_people(BLACK, people))
    assert set(written[:4]) == {"1", "7"} and set(written[4:]) == {"7"}


def test_a_tracked_person_keeps_its_colour_and_has_its_number():
    image = np.zeros((400, 600, 3), np.uint8)
    people = [dataclasses.replace(person_at(x), id=id) for x, id in ((150, 3), (450, 1))]
    drawing = draw_people(image, people)
    assert np.array_equal(drawing, draw_people(image, people[::-1]))
    assert (drawing[:, :300] == PALETTE[2]).all(2).any()
    assert not (drawing[:, 300:] == PALETTE[2]).all(2).any()
