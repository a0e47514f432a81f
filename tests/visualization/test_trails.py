"""Trails follow the people and end after a while."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from posenet.inference.media.sources import FileSource, Frame
from posenet.visualization.people import person_colour
from posenet.visualization.trails import SECONDS, Trails
from tests.helpers.moving_people import person_at

IMAGE = np.zeros((400, 600, 3), np.uint8)


def draw(trails: Trails, x: float | None, seconds: float, source: str = "a.mp4") -> np.ndarray:
    """(600,) bool: the columns in which a trail is drawn, for one person at ``x``."""
    people = [] if x is None else [dataclasses.replace(person_at(x), id=2)]
    drawing = IMAGE.copy()
    trails.draw(drawing, Frame(FileSource("video", Path(source)), IMAGE, 0, seconds, 25.0), people)
    assert {tuple(colour) for colour in drawing[drawing.any(2)]} <= {person_colour(2)} or drawing.any()
    return drawing.any((0, 2))


def test_a_trail_leads_from_the_earlier_positions_to_the_person() -> None:
    trails = Trails()
    for number in range(11):
        columns = draw(trails, 100 + 10 * number, number / 10)
    assert columns[105:195].all() and not columns[:90].any() and not columns[210:].any()


def test_old_parts_of_a_trail_vanish() -> None:
    trails = Trails()
    for number in range(41):
        columns = draw(trails, 100 + 10 * number, number / 10)
    assert columns[500 - round(90 * SECONDS) : 495].all()
    assert not columns[: 490 - round(100 * SECONDS)].any()
    assert not draw(trails, None, 100.0).any()


def test_a_new_video_has_no_trails_of_the_last_one() -> None:
    trails = Trails()
    for number in range(5):
        draw(trails, 100 + 50 * number, number / 10)
    assert not draw(trails, 500, 0.0, "b.mp4").any()
