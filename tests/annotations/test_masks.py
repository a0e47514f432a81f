"""The person mask and the supervision mask of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations.people import person_masks
from posenet.annotations.reading import read_annotations
from tests.helpers.drawn_data import HEIGHT, WIDTH, box_mask, crowd, person, read_people


def test_people_and_several_crowds(tmp_path: Path) -> None:
    people = read_people(
        tmp_path,
        person(1, 1, (0, 0, 20, 30)),
        person(2, 1, (40, 0, 20, 30), 0),
        crowd(3, 1, (0, 60, 30, 20)),
        crowd(4, 1, (80, 60, 30, 20)),
        crowd(5, 1, (150, 0, 10, 120)),
    )
    mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
    ignored = box_mask(40, 0, 20, 30) + box_mask(0, 60, 30, 20) + box_mask(80, 60, 30, 20)
    ignored += box_mask(150, 0, 10, 120)
    for mask in (mask_all, mask_miss):
        assert mask.dtype == np.uint8 and mask.shape == (HEIGHT, WIDTH) and mask.flags.f_contiguous
    np.testing.assert_array_equal(mask_miss, 1 - ignored)
    np.testing.assert_array_equal(mask_all, ignored + box_mask(0, 0, 20, 30))


def test_a_labelled_person_in_a_crowd_stays_supervised(tmp_path: Path) -> None:
    others = [crowd(2, 1, (0, 0, 100, 100)), person(3, 1, (90, 90, 30, 30), 0)]
    people = read_people(tmp_path, person(1, 1, (60, 60, 40, 40)), *others)
    mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
    crowded = box_mask(0, 0, 100, 100) | box_mask(90, 90, 30, 30)
    np.testing.assert_array_equal(mask_miss, 1 - (crowded & ~box_mask(60, 60, 40, 40)))
    np.testing.assert_array_equal(mask_all, crowded)


def test_a_crowd_is_ignored_even_with_keypoints(tmp_path: Path) -> None:
    people = read_people(tmp_path, person(1, 1, (10, 10, 20, 20), 17, iscrowd=1))
    np.testing.assert_array_equal(person_masks(people, HEIGHT, WIDTH)[1], 1 - box_mask(10, 10, 20, 20))


def test_an_image_without_people_is_supervised_everywhere() -> None:
    mask_all, mask_miss = person_masks([], 3, 5)
    assert not mask_all.any() and mask_miss.all() and mask_all.shape == mask_miss.shape == (3, 5)


def test_all_three_forms_of_outline_give_one_mask(tmp_path: Path) -> None:
    polygon = person(1, 1, (30, 10, 40, 50))
    runs = crowd(2, 1, (30, 10, 40, 50))
    counts = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"].decode()
    text = person(3, 1, (30, 10, 40, 50), segmentation={"size": [HEIGHT, WIDTH], "counts": counts})
    for one in read_people(tmp_path, polygon, runs, text):
        np.testing.assert_array_equal(person_masks([one], HEIGHT, WIDTH)[0], box_mask(30, 10, 40, 50))


def test_several_polygons_are_one_person(tmp_path: Path) -> None:
    legs = [[10, 10, 20, 10, 20, 50, 10, 50], [30, 10, 40, 10, 40, 50, 30, 50], [1, 1, 2, 2]]
    people = read_people(tmp_path, person(1, 1, segmentation=legs))
    expected = box_mask(10, 10, 10, 40) + box_mask(30, 10, 10, 40)
    np.testing.assert_array_equal(person_masks(people, HEIGHT, WIDTH)[0], expected)


@pytest.mark.parametrize(
    "outline",
    [
        None,
        [],
        [[]],
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4, 5, 6, 7]],
        [["a"] * 6],
        [[1e9, 0, 1e9, 9, 0, 9]],
        "polygon",
        7,
        {},
        {"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]},
        {"size": [HEIGHT, WIDTH]},
        {"size": [HEIGHT, WIDTH], "counts": [1, 2]},
        {"size": [HEIGHT, WIDTH], "counts": [-1, HEIGHT * WIDTH + 1]},
        {"size": [HEIGHT, WIDTH], "counts": [10**400]},
        {"size": [HEIGHT, WIDTH], "counts": "oooooooo"},
        {"size": [HEIGHT, WIDTH], "counts": ""},
        {"size": [HEIGHT, WIDTH], "counts": "é"},
    ],
    ids=str,
)
def test_the_box_replaces_an_unusable_outline(tmp_path: Path, outline: Any) -> None:
    people = read_people(
        tmp_path,
        person(1, 1, (10.4, 20.6, 30, 40), 0, segmentation=outline),
        person(2, 1, (150, 100, 50, 50), 0, segmentation=outline),
    )
    assert all(one.segmentation is None for one in people)
    mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
    expected = box_mask(10, 20, 31, 41) + box_mask(150, 100, 10, 20)
    np.testing.assert_array_equal(mask_all, expected)
    np.testing.assert_array_equal(mask_miss, 1 - expected)


def test_a_box_may_be_far_larger_than_the_image(tmp_path: Path) -> None:
    people = read_people(tmp_path, person(1, 1, (-1e9, -1e9, 1e10, 1e10), 0, area=1.0, segmentation=None))
    assert person_masks(people, HEIGHT, WIDTH)[0].all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
def test_real_outlines_agree_with_pycocotools(coco_sample: Path) -> None:
    dataset = read_annotations(coco_sample / "annotations" / "person_keypoints_train2017.json")
    for image in dataset.images:
        size = image.height, image.width
        for one in dataset.people[image.id]:
            outline: Any = one.segmentation
            if isinstance(outline, np.ndarray):
                outline = {"size": list(size), "counts": outline.tolist()}
            encoded = coco_mask.frPyObjects(outline, *size)
            if isinstance(encoded, list):
                encoded = coco_mask.merge(encoded)
            np.testing.assert_array_equal(person_masks([one], *size)[0], coco_mask.decode(encoded))
