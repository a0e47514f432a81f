"""The selection of main persons."""

from __future__ import annotations

from pathlib import Path

from posenet.annotations.people import select_main_persons
from tests.helpers.drawn_data import person, read_people


def test_a_main_person_has_five_keypoints_and_1024_square_pixels_and_is_no_crowd(tmp_path: Path) -> None:
    boxes = [(0, 0, 32, 32), (50, 0, 32, 32), (100, 0, 32, 31), (0, 80, 32, 32), (100, 80, 0, 32)]
    people = read_people(
        tmp_path,
        person(1, 1, boxes[0], 5),
        person(2, 1, boxes[1], 4),
        person(3, 1, boxes[2], 5),
        person(4, 1, boxes[3], 17, iscrowd=1),
        person(5, 1, boxes[4], 17, area=2000),
    )
    assert select_main_persons(people) == [0]


def test_other_skeletons_may_need_fewer_keypoints(tmp_path: Path) -> None:
    people = read_people(tmp_path, person(1, 1, (0, 0, 32, 32), 2))
    assert select_main_persons(people, min_labelled=3) == []
    assert select_main_persons(people, min_labelled=2) == [0]


def test_centres_are_farther_apart_than_three_tenths_of_the_longer_side(tmp_path: Path) -> None:
    first = person(1, 1, (0, 0, 40, 100))
    at_the_limit = person(2, 1, (30, 0, 40, 100))
    beyond = person(3, 1, (31, 0, 40, 100))
    assert select_main_persons(read_people(tmp_path, first, at_the_limit)) == [0]
    assert select_main_persons(read_people(tmp_path, first, beyond)) == [0, 1]


def test_the_earlier_persons_own_box_sets_the_distance(tmp_path: Path) -> None:
    large = person(1, 1, (0, 0, 100, 100))
    small = person(2, 1, (55, 30, 40, 40))
    assert select_main_persons(read_people(tmp_path, large, small)) == [0]
    assert select_main_persons(read_people(tmp_path, small, large)) == [0, 1]


def test_every_earlier_main_person_counts_not_only_the_last(tmp_path: Path) -> None:
    first = person(1, 1, (0, 0, 40, 40))
    second = person(2, 1, (100, 60, 40, 40))
    near_the_first = person(3, 1, (5, 5, 40, 40))
    assert select_main_persons(read_people(tmp_path, first, second, near_the_first)) == [0, 1]


def test_a_person_who_is_not_a_main_person_keeps_no_distance(tmp_path: Path) -> None:
    people = read_people(tmp_path, person(1, 1, (0, 0, 40, 40), 3), person(2, 1, (2, 2, 40, 40)))
    assert select_main_persons(people) == [1]
