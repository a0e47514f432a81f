"""Drawings of people."""

import dataclasses

import cv2
import numpy as np
import pytest

from posenet.person import Person
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table
from posenet.visualization.drawing import (
    LEFT,
    MIDDLE,
    OUTLINE,
    PALETTE,
    RIGHT,
    draw_people,
)
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


def test_line_width_follows_the_image_size(person):
    large_person = Person(person.keypoints * np.float32([8, 8, 1]), 0.9)
    large = draw_people(np.zeros((3072, 4096, 3), np.uint8), [large_person])
    small = draw_people(BLACK, [person])
    assert large.any(axis=2).mean() == pytest.approx(small.any(axis=2).mean(), rel=0.5)
    panorama = draw_people(np.zeros((384, 5120, 3), np.uint8), [person])
    assert panorama.any(axis=2).sum() == pytest.approx(small.any(axis=2).sum(), rel=0.5)


def test_a_notebook_shows_a_drawing_as_a_png():
    drawing = draw_people(np.full((20, 30, 3), 90, np.uint8), [])
    png = np.frombuffer(drawing._repr_png_(), np.uint8)
    assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR), drawing)
    assert drawing[:0]._repr_png_() is None and drawing[0]._repr_png_() is None and (drawing / 2)._repr_png_() is None


def test_rgb_arrays_are_drawn_as_bgr():
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    assert np.array_equal(draw_people(image[..., ::-1], [], channels="rgb"), image)


def test_a_limb_and_its_ends_have_outlines():
    """Around the end at (400, 300) of a limb to (1000, 1100); lines are as wide as an image of this size allows."""
    skeleton = skeleton_from_table({"keypoints": ["a", "b"], "parts": [["a", "b"]]})
    limb = Person([[400, 300, 1], [1000, 1100, 1]], 0.5, skeleton)
    drawn = draw_people(np.zeros((1400, 1400, 3), np.uint8), [limb])[200:500, 300:600]
    y, x = np.mgrid[-100:200, -100:200]
    along, across, to_end = 0.6 * x + 0.8 * y, np.abs(0.8 * x - 0.6 * y), np.hypot(x, y)
    width, outline = 12, 4
    on_limb = along > 30
    assert has_colour(drawn, PALETTE[0])[(to_end < 0.9 * width - 1) | (on_limb & (across < width / 2 - 1))].all()
    assert has_colour(drawn, OUTLINE)[np.abs(to_end - 0.9 * width - outline / 2) < 0.5].all()
    assert has_colour(drawn, OUTLINE)[on_limb & (np.abs(across - width / 2 - outline / 2) < 0.4)].all()
    assert not drawn[on_limb & (across > width / 2 + outline + 2)].any()


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


@pytest.mark.parametrize("x, y", [(150, 200), (10, 20)], ids=["inside", "corner"])
def test_the_number_of_a_person_is_above_its_box_or_at_the_border(x, y):
    image = np.full((400, 600, 3), 90, np.uint8)
    person = person_at(x, y)
    without, with_number = (draw_people(image, [person], numbers=numbers) for numbers in (False, True))
    rows, columns = np.nonzero((without != with_number).any(axis=2))
    left, top, _, _ = person.box
    assert 0 <= columns.min() - max(0, left) < 6 and 4 < np.ptp(columns) < 20
    assert 10 < np.ptp(rows) < 20
    assert rows.min() >= 0 and (abs(top - 6 - rows.max()) < 6 if top > 30 else rows.max() < 30)
