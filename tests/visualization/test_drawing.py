"""Drawings of people, and trails that follow them and end after a while."""

import dataclasses

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.person import Person
from posenet.skeleton import COCO
from posenet.visualization.drawing import (
    LEFT,
    MIDDLE,
    PALETTE,
    RIGHT,
    TRAIL_SECONDS,
    Trails,
    draw_people,
    person_colour,
)
from tests.helpers.moving_people import person_at
from tests.helpers.rendered_maps import standing_person


def has_colour(image, colour):
    return np.abs(image.astype(int) - colour).max(axis=2) <= 2


@pytest.fixture
def person():
    return Person(standing_person(250, 190), 0.9)


@pytest.mark.parametrize("background", [0, 255])
def test_sides_are_distinct_on_dark_and_light_images(person, background):
    image = np.full((384, 512, 3), background, np.uint8)
    drawn = draw_people(image, [person])
    assert (image == background).all()
    left, right, middle = (has_colour(drawn, colour) for colour in (LEFT, RIGHT, MIDDLE))
    assert min(left.sum(), right.sum(), middle.sum()) > 50
    wrist, ankle = person.keypoints[COCO.index("Lwri")], person.keypoints[COCO.index("Rank")]
    assert left[round(float(wrist[1])), round(float(wrist[0]))]
    assert right[round(float(ankle[1])), round(float(ankle[0]))]


def test_what_was_not_found_or_has_a_low_score_is_not_drawn(person):
    image = np.zeros((384, 512, 3), np.uint8)
    assert not draw_people(image, [person], min_score=0.95).any()
    assert not draw_people(image, [person], keypoint_min_score=1.5).any()
    assert draw_people(image, [person], min_score=0.9, keypoint_min_score=1.0).any()
    ankle = person.keypoints[COCO.index("Lank")]
    ankle[2] = 0
    drawn = draw_people(image, [person])
    assert not drawn[int(ankle[1]) - 10 : int(ankle[1]) + 10, int(ankle[0]) - 8 : int(ankle[0]) + 8].any()


def test_line_width_follows_the_image_size_or_is_set(person):
    image = np.zeros((384, 512, 3), np.uint8)
    large_person = Person(person.keypoints * np.float32([8, 8, 1]), 0.9)
    large = draw_people(np.zeros((3072, 4096, 3), np.uint8), [large_person])
    small = draw_people(image, [person])
    assert large.any(axis=2).mean() == pytest.approx(small.any(axis=2).mean(), rel=0.5)
    panorama = draw_people(np.zeros((384, 5120, 3), np.uint8), [person])
    assert panorama.any(axis=2).sum() == pytest.approx(small.any(axis=2).sum(), rel=0.5)
    areas = [draw_people(image, [person], line_width=width).any(axis=2).sum() for width in (1, 4, 9)]
    assert areas[0] < areas[1] < areas[2]


def test_every_person_can_have_one_colour(person):
    image = np.zeros((384, 1024, 3), np.uint8)
    other = Person(person.keypoints + np.float32([400, 0, 0]), 0.5)
    drawn = draw_people(image, [person, other], colours="person")
    for i, colour in enumerate(PALETTE[:2]):
        columns = has_colour(drawn, colour).any(axis=0)
        assert columns[512 * i : 512 * (i + 1)].any() and not columns[512 * (1 - i) : 512 * (2 - i)].any()
    assert not has_colour(drawn, LEFT).any() and not has_colour(drawn, RIGHT).any()


def test_images_of_every_kind_are_drawn_on(person):
    for image in (
        np.zeros((100, 120), np.uint8),
        np.zeros((100, 120, 4), np.uint8),
        np.zeros((100, 120, 3), np.uint16),
        np.zeros((1, 1, 3), np.uint8),
        np.zeros((9000, 12, 3), np.uint8),
    ):
        drawn = draw_people(image, [person, Person(np.zeros((18, 3), np.float32), 0.0)])
        assert drawn.dtype == np.uint8 and drawn.shape == (*image.shape[:2], 3)
    with pytest.raises(DataError):
        draw_people(np.zeros((5, 5, 3)), [person])


def test_a_notebook_shows_a_drawing_as_a_png():
    drawing = draw_people(np.full((20, 30, 3), 90, np.uint8), [])
    png = np.frombuffer(drawing._repr_png_(), np.uint8)
    assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR), drawing)
    assert drawing[0]._repr_png_() is None and (drawing / 2)._repr_png_() is None


def test_rgb_arrays_and_files_are_drawn_as_bgr(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), image)
    assert np.array_equal(draw_people(image[..., ::-1], [], channels="rgb"), image)
    assert np.array_equal(draw_people(tmp_path / "a.png", []), image)


def test_a_tracked_person_keeps_its_colour_and_has_its_number():
    image = np.zeros((400, 600, 3), np.uint8)
    people = [dataclasses.replace(person_at(x), id=id) for x, id in ((150, 3), (450, 1))]
    drawing = draw_people(image, people, colours="person")
    assert np.array_equal(drawing, draw_people(image, people[::-1], colours="person"))
    assert (drawing[:, :300] == person_colour(3)).all(2).any()
    assert not (drawing[:, 300:] == person_colour(3)).all(2).any()
    without_number = draw_people(image, [dataclasses.replace(people[1], id=None)], colours="person")
    assert not np.array_equal(draw_people(image, people[1:], colours="person"), without_number)


def test_the_number_of_a_person_at_the_upper_edge_is_not_cut_off():
    image = np.zeros((800, 600, 3), np.uint8)
    sizes = []
    for top in (3, 300):
        person = person_at(300)
        person.keypoints[:, 1] += top - person.box()[1]
        without_number = draw_people(image, [person], colours="person")
        # The first colour of the palette, as without an id.
        drawing = draw_people(image, [dataclasses.replace(person, id=1 + len(PALETTE))], colours="person")
        rows, columns = np.nonzero((drawing != without_number).any(axis=2))
        sizes.append((np.ptp(rows), np.ptp(columns)))
    assert sizes[0] == sizes[1]


def trail_columns(trails, x, seconds, source="a.mp4"):
    """(600,) bool: the columns in which a trail is drawn, for one person at ``x``, or for nobody."""
    people = [] if x is None else [dataclasses.replace(person_at(x), id=2)]
    drawing = np.zeros((400, 600, 3), np.uint8)
    trails.draw(drawing, source, seconds, people)
    return drawing.any((0, 2))


def test_a_trail_leads_from_the_earlier_positions_to_the_person_and_vanishes():
    trails = Trails()
    for number in range(11):
        columns = trail_columns(trails, 100 + 10 * number, number / 10)
    assert columns[105:195].all() and not columns[:90].any() and not columns[210:].any()
    for number in range(11, 41):
        columns = trail_columns(trails, 100 + 10 * number, number / 10)
    assert columns[500 - round(90 * TRAIL_SECONDS) : 495].all()
    assert not columns[: 490 - round(100 * TRAIL_SECONDS)].any()
    assert not trail_columns(trails, None, 100.0).any()
    trail_columns(trails, 100, 101.0)
    assert not trail_columns(trails, 500, 101.1, "b.mp4").any(), "a new video has no trails of the last one"


def test_a_trail_does_not_jump_when_other_keypoints_are_found():
    trails = Trails()
    trail_columns(trails, 300, 0.0)
    person = dataclasses.replace(person_at(300), id=2)
    person.keypoints[:9, 2] = 0
    drawing = np.zeros((400, 600, 3), np.uint8)
    trails.draw(drawing, "a.mp4", 0.1, [person])
    assert drawing.any((0, 2)).sum() < 8
