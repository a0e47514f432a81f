"""Whom training samples are centred on, and the masks of people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations.people import person_masks, read_dataset, select_main_persons
from tests.helpers.drawn_data import HEIGHT, WIDTH, box_mask, crowd, person, read_people


class TestMainPersons:
    def test_have_five_keypoints_and_64_square_pixels_and_are_no_crowd(self, tmp_path: Path) -> None:
        people = read_people(
            tmp_path,
            person(1, 1, (1, 0, 32, 40), 5, area=64),
            person(2, 1, (50, 0, 32, 40), 4, area=1024),
            person(3, 1, (100, 0, 32, 40), 5, area=63),
            person(4, 1, (0, 80, 32, 32), 17, iscrowd=1),
            person(5, 1, (100, 80, 0.5, 32), 17, area=2000),
            person(6, 1, (130, 60, 1, 1), 17, area=1024),
        )
        assert select_main_persons(people) == [0, 5]
        assert select_main_persons(people, min_labelled=4) == [0, 1, 5], "other skeletons may need fewer"

    @pytest.mark.parametrize(
        "boxes, selected",
        [
            ([(0, 0, 40, 100), (30, 0, 40, 100)], [0]),
            ([(0, 0, 40, 100), (31, 0, 40, 100)], [0, 1]),
            ([(0, 0, 100, 100), (55, 30, 40, 40)], [0]),
            ([(55, 30, 40, 40), (0, 0, 100, 100)], [0, 1]),
            ([(0, 0, 40, 40), (100, 60, 40, 40), (5, 5, 40, 40)], [0, 1]),
        ],
        ids=["at the limit", "beyond it", "near a larger one", "near a smaller one", "every earlier one counts"],
    )
    def test_keep_a_share_of_a_longer_side(
        self, tmp_path: Path, boxes: list[tuple[int, ...]], selected: list[int]
    ) -> None:
        people = read_people(tmp_path, *(person(number, 1, box) for number, box in enumerate(boxes)))
        assert select_main_persons(people) == selected


UNUSABLE: list[Any] = [
    None, [], [[]], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [["a"] * 6], [[1e9, 0, 1e9, 9, 0, 9]],
    [[0, 0, 5, float("nan"), 5, 5]], [[0, 0, 5, float("inf"), 5, 5]], [[0, 0, 5, 10**400, 5, 5.0]], "polygon", 7, {},
    {"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]}, {"size": [HEIGHT, WIDTH]},
    {"size": [HEIGHT, WIDTH], "counts": [1, 2]}, {"size": [HEIGHT, WIDTH], "counts": [-1, HEIGHT * WIDTH + 1]},
    {"size": [HEIGHT, WIDTH], "counts": [10**400]}, {"size": [HEIGHT, WIDTH], "counts": "oooooooo"},
    {"size": [HEIGHT, WIDTH], "counts": ""}, {"size": [HEIGHT, WIDTH], "counts": "é"},
]  # fmt: skip


class TestMasks:
    def test_people_and_several_crowds(self, tmp_path: Path) -> None:
        people = read_people(
            tmp_path,
            person(1, 1, (0, 0, 20, 30)),
            person(2, 1, (40, 0, 20, 30), 0),
            crowd(3, 1, (0, 60, 30, 20)),
            crowd(4, 1, (80, 60, 30, 20)),
            person(5, 1, (150, 0, 10, 120), 17, iscrowd=1),  # a crowd even with keypoints
        )
        mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
        ignored = box_mask(40, 0, 20, 30) + box_mask(0, 60, 30, 20) + box_mask(80, 60, 30, 20)
        ignored += box_mask(150, 0, 10, 120)
        for mask in (mask_all, mask_miss):
            assert mask.dtype == np.uint8 and mask.shape == (HEIGHT, WIDTH) and mask.flags.f_contiguous
        np.testing.assert_array_equal(mask_miss, 1 - ignored)
        np.testing.assert_array_equal(mask_all, ignored + box_mask(0, 0, 20, 30))

    def test_a_labelled_person_in_a_crowd_stays_supervised(self, tmp_path: Path) -> None:
        others = [crowd(2, 1, (0, 0, 100, 100)), person(3, 1, (90, 90, 30, 30), 0)]
        people = read_people(tmp_path, person(1, 1, (60, 60, 40, 40)), *others)
        mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
        crowded = box_mask(0, 0, 100, 100) | box_mask(90, 90, 30, 30)
        np.testing.assert_array_equal(mask_miss, 1 - (crowded & ~box_mask(60, 60, 40, 40)))
        np.testing.assert_array_equal(mask_all, crowded)

    def test_an_image_without_people_is_supervised_everywhere(self, tmp_path: Path) -> None:
        mask_all, mask_miss = person_masks(read_people(tmp_path), 3, 5)
        assert not mask_all.any() and mask_miss.all() and mask_all.shape == mask_miss.shape == (3, 5)

    def test_all_three_forms_of_outline_give_one_mask(self, tmp_path: Path) -> None:
        counts = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"].decode()
        text = person(3, 1, (30, 10, 40, 50), segmentation={"size": [HEIGHT, WIDTH], "counts": counts})
        for entry in (person(1, 1, (30, 10, 40, 50)), crowd(2, 1, (30, 10, 40, 50)), text):
            people = read_people(tmp_path, entry)
            np.testing.assert_array_equal(person_masks(people, HEIGHT, WIDTH)[0], box_mask(30, 10, 40, 50))

    def test_the_box_replaces_an_unusable_outline(self, tmp_path: Path) -> None:
        expected = box_mask(10, 20, 31, 41) + box_mask(150, 100, 10, 20)
        for outline in UNUSABLE:
            people = read_people(
                tmp_path,
                person(1, 1, (10.4, 20.6, 30, 40), 0, segmentation=outline),
                person(2, 1, (150, 100, 50, 50), 0, segmentation=outline),
                person(3, 1, (100, 0, 20, 20)),
            )
            assert people.outlines[:2] == [None, None], outline
            mask_all, mask_miss = person_masks(people, HEIGHT, WIDTH)
            np.testing.assert_array_equal(mask_all, expected + box_mask(100, 0, 20, 20))
            np.testing.assert_array_equal(mask_miss, 1 - expected)

    def test_a_box_may_be_far_larger_than_the_image(self, tmp_path: Path) -> None:
        people = read_people(tmp_path, person(1, 1, (-1e9, -1e9, 1e10, 1e10), 0, area=1.0, segmentation=None))
        assert person_masks(people, HEIGHT, WIDTH)[0].all()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
    def test_real_outlines_agree_with_pycocotools(self, coco_sample: Path) -> None:
        dataset = read_dataset(coco_sample / "annotations" / "person_keypoints_train2017.json")
        for image in dataset.images:
            size = image.height, image.width
            people = dataset.people[image.id]
            for row, outline in enumerate(people.outlines):
                region: Any = outline
                if isinstance(outline, np.ndarray):
                    region = {"size": list(size), "counts": outline.tolist()}
                encoded = coco_mask.frPyObjects(region, *size)
                if isinstance(encoded, list):
                    encoded = coco_mask.merge(encoded)
                found = person_masks(people.select(slice(row, row + 1)), *size)[0]
                np.testing.assert_array_equal(found, coco_mask.decode(encoded))
