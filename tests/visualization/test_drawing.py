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
    person_colour,
)
from tests.helpers.moving_people import person_at
from tests.helpers.rendered_maps import standing_person

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


@pytest.mark.parametrize("style", ["standard", "openpose"])
def test_a_limb_and_its_ends_have_the_shape_of_the_style(style):
    """From (40, 30) to (100, 110), a length of 100; edges are smooth."""
    skeleton = skeleton_from_table({"keypoints": ["a", "b"], "parts": [["a", "b"]]})
    limb = Person([[40, 30, 1], [100, 110, 1]], 0.5, skeleton)
    drawn = draw_people(
        np.zeros((140, 140, 3), np.uint8), [limb], style=style, line_width=20, radius=14, colours="person"
    )
    y, x = np.mgrid[:140, :140]
    along, across = 0.6 * (x - 70) + 0.8 * (y - 70), 0.8 * (x - 70) - 0.6 * (y - 70)
    to_end = np.hypot(np.abs(along) - 50, across)
    on_dot, on_limb = to_end < 13, (to_end > 22) & (np.abs(along) < 50)
    assert has_colour(drawn, PALETTE[0])[on_dot].all()
    if style == "standard":  # outlines are a third as wide as lines
        parts = {PALETTE[0]: np.abs(across) < 9, OUTLINE: np.abs(np.abs(across) - 13) < 1}
        assert has_colour(drawn, OUTLINE)[np.abs(to_end - 17) < 1.5].all()
        assert not drawn[(to_end > 22) & ~(on_limb & (np.abs(across) < 18))].any()
    else:
        radius = np.hypot(along / 50, across / 10)
        parts = {tuple(0.6 * np.array(PALETTE[0])): radius < 0.9}
        assert not drawn[(to_end > 16) & (radius > 1.2)].any()
    for colour, is_part in parts.items():
        assert has_colour(drawn, colour)[on_limb & is_part].all()


@pytest.mark.parametrize("style", ["standard", "openpose"])
def test_keypoints_that_are_not_finite_or_far_away_are_not_drawn(person, style):
    lost, damaged = person.keypoints.copy(), person.keypoints.copy()
    for name, value in (("left_wrist", np.nan), ("right_ankle", -np.inf), ("nose", 1e30)):
        lost[COCO.index(name)] = 0
        damaged[COCO.index(name), :2] = value
    drawn = draw_people(BLACK, [Person(damaged, 0.9)], style=style)
    assert drawn.any() and np.array_equal(drawn, draw_people(BLACK, [Person(lost, 0.9)], style=style))
    assert draw_people(BLACK, [Person(damaged, 0.9, id=1)], style=style, colours="person").any()
    assert not draw_people(BLACK, [Person(np.full((18, 3), np.inf), 0.9)], style=style).any()


def test_the_style_of_openpose_has_its_colours_and_limbs(person):
    """Hues in steps of 20 degrees: keypoints in full brightness, limbs at 0.6 of it on black."""
    drawn = draw_people(BLACK, [person], style="openpose")
    expected = {"nose": (255, 0, 0), "neck": (255, 85, 0), "right_wrist": (170, 255, 0), "left_ear": (255, 0, 85)}
    for name, rgb in expected.items():
        x, y = np.rint(person.keypoints[COCO.index(name), :2]).astype(int)
        assert drawn[y, x].tolist() == list(rgb[::-1]), name
    for a, b, rgb in (("neck", "right_shoulder", (153, 0, 0)), ("left_knee", "left_ankle", (0, 51, 153))):
        x, y = between(person, a, b)
        assert np.abs(drawn[y, x].astype(int) - rgb[::-1]).max() <= 2, (a, b)
    x, y = between(person, "left_hip", "right_hip")
    assert not drawn[y, x].any(), "the limbs of the hips start at the neck"


def test_an_image_is_visible_through_the_limbs_of_openpose(person):
    image = np.random.default_rng(0).integers(0, 256, (384, 512, 3)).astype(np.uint8)
    drawn = draw_people(image, [person], style="openpose")
    x, y = between(person, "left_knee", "left_ankle")
    np.testing.assert_allclose(drawn[y, x], 0.4 * image[y, x] + 0.6 * np.array([255, 85, 0]), atol=1)


@pytest.mark.parametrize("style", ["standard", "openpose"])
def test_widths_radii_thresholds_and_colours_apply_to_both_styles(person, style):
    def area(**options):
        return int(draw_people(BLACK, [person], style=style, **options).any(axis=2).sum())

    assert area(line_width=2) < area(line_width=6) < area(line_width=6, radius=12)
    assert area(keypoint_min_score=1.5) == 0
    other = Person(person.keypoints + np.float32([400, 0, 0]), 0.5)
    drawn = draw_people(np.zeros((384, 1024, 3), np.uint8), [person, other], style=style, colours="person")
    for i, colour in enumerate(PALETTE[:2]):
        columns = has_colour(drawn, colour).any(axis=0)
        assert columns[512 * i : 512 * (i + 1)].any() and not columns[512 * (1 - i) : 512 * (2 - i)].any()


@pytest.mark.parametrize("style", ["standard", "openpose"])
def test_the_first_person_is_drawn_on_top(person, style):
    drawn = draw_people(BLACK, [person, Person(person.keypoints, 0.8)], style=style, colours="person")
    x, y = np.rint(person.keypoints[COCO.index("left_wrist"), :2]).astype(int)
    assert drawn[y, x].tolist() == list(PALETTE[0])


def test_without_sides_each_person_has_a_colour_and_in_the_style_of_openpose_each_keypoint_a_hue():
    table = {"keypoints": ["a", "b", "c"], "parts": [["a", "b"], ["b", "c"]]}
    position = np.array([[20, 20, 1], [80, 20, 1], [80, 80, 1]])
    black = np.zeros((100, 100, 3), np.uint8)
    plain = Person(position, 0.5, skeleton_from_table(table))
    drawn = draw_people(black, [plain], style="openpose", line_width=8)
    assert drawn[20, 20].tolist() == [0, 0, 255] and drawn[20, 80].tolist() == [0, 255, 0]
    assert drawn[20, 50].tolist() == [0, 0, 153] and drawn[50, 80].tolist() == [0, 153, 0]
    drawn = draw_people(black, [plain])
    assert drawn[20, 20].tolist() == drawn[80, 80].tolist() == list(PALETTE[0])
    for more, at_a, at_c in (
        ({"left_right": [["a", "c"]]}, LEFT, RIGHT),
        ({"colours": {"a": "#ff8000", "c": "#0000ff"}}, (0, 128, 255), (255, 0, 0)),
    ):
        custom = table | {"parts": [["a", "b"], ["b", "c"], ["a", "c"]]} | more
        drawn = draw_people(black, [Person(position, 0.5, skeleton_from_table(custom))], line_width=6)
        expected = {(20, 20): at_a, (50, 20): at_a, (80, 20): MIDDLE, (80, 50): at_c, (80, 80): at_c, (50, 50): MIDDLE}
        assert {(x, y): tuple(drawn[y, x].tolist()) for x, y in expected} == expected
        one_limb = Person(position, 0.5, skeleton_from_table(custom | {"drawn": [["a", "c"]]}))
        drawn = draw_people(black, [one_limb], line_width=6)
        assert drawn[50, 50].any() and not drawn[20, 50].any()


@pytest.mark.parametrize(
    "option",
    [{"line_width": 2.5}, {"line_width": -1}, {"radius": -3}, {"style": "coco"}, {"colours": "red"}],
    ids=str,
)
def test_a_value_that_cannot_be_drawn_is_refused(person, option):
    [value] = option.values()
    with pytest.raises(ValueError, match=str(value)):
        draw_people(BLACK, [person], **option)


def test_a_notebook_shows_a_drawing_as_a_png():
    drawing = draw_people(np.full((20, 30, 3), 90, np.uint8), [])
    png = np.frombuffer(drawing._repr_png_(), np.uint8)
    assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR), drawing)
    assert drawing[:0]._repr_png_() is None and drawing[0]._repr_png_() is None and (drawing / 2)._repr_png_() is None


def test_rgb_arrays_are_drawn_as_bgr():
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    assert np.array_equal(draw_people(image[..., ::-1], [], channels="rgb"), image)


def test_people_are_numbered_on_request_in_their_order_or_by_their_id(monkeypatch):
    written = []
    put_text = cv2.putText
    monkeypatch.setattr(cv2, "putText", lambda image, text, *rest: (written.append(text), put_text(image, text, *rest)))
    people = [person_at(150), dataclasses.replace(person_at(450), id=7)]
    for style in ("standard", "openpose"):
        assert not np.array_equal(draw_people(BLACK, people, style=style, numbers=True), draw_people(BLACK, people))
        assert set(written) == {"1", "7"}
        written.clear()


def test_a_tracked_person_keeps_its_colour_and_has_its_number():
    image = np.zeros((400, 600, 3), np.uint8)
    people = [dataclasses.replace(person_at(x), id=id) for x, id in ((150, 3), (450, 1))]
    drawing = draw_people(image, people, colours="person")
    assert np.array_equal(drawing, draw_people(image, people[::-1], colours="person"))
    assert (drawing[:, :300] == person_colour(3)).all(2).any()
    assert not (drawing[:, 300:] == person_colour(3)).all(2).any()


@pytest.mark.parametrize("x, y", [(150, 200), (10, 20)], ids=["inside", "corner"])
def test_the_number_of_a_person_is_above_its_box_or_at_the_border(x, y):
    image = np.full((400, 600, 3), 90, np.uint8)
    person = person_at(x, y)
    without, with_number = (
        draw_people(image, [dataclasses.replace(person, id=id)], colours="person") for id in (None, 1)
    )
    rows, columns = np.nonzero((without != with_number).any(axis=2))
    left, top, _, _ = person.box
    assert 0 <= columns.min() - max(0, left) < 6 and 4 < np.ptp(columns) < 20
    assert 10 < np.ptp(rows) < 20
    assert rows.min() >= 0 and (abs(top - 6 - rows.max()) < 6 if top > 30 else rows.max() < 30)
