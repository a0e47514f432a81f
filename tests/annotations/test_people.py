"""People for a store and for an evaluation: what is kept and refused, whom samples are centred on, and masks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations.coco import COCO_CATEGORY, CocoImage, read_document
from posenet.annotations.people import People, Split, person_masks, read_dataset, read_split, select_main_persons
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import HEIGHT, WIDTH, box_mask, crowd, document, person, read_people, write_annotations


def write(folder: Path, content: Any) -> Path:
    return write_annotations(folder / "tiny.json", content)


class TestPeople:
    def test_stand_with_their_image_in_file_order(self, tmp_path: Path) -> None:
        people = [person(number, 1 + number % 2, (number, 20, 50, 60)) for number in range(60, 0, -1)]
        dataset = read_dataset(write(tmp_path, document((2, 1, 7), people)))
        assert [image.id for image in dataset.images] == [2, 1, 7]
        ids = {image_id: people.ids.tolist() for image_id, people in dataset.people.items()}
        assert ids == {2: [*range(59, 0, -2)], 1: [*range(60, 0, -2)], 7: []}

    def test_have_keypoints_in_the_order_of_the_skeleton(self, tmp_path: Path) -> None:
        entry = person(1, 1, labelled=0)
        entry["keypoints"] = [value for k in range(17) for value in (k, 100 + k, 1 + k % 2)]
        people = read_people(tmp_path, entry)
        assert people.keypoints.dtype == np.float32 and people.keypoints.shape == (1, 18, 3)
        for k, name in enumerate(COCO_CATEGORY["keypoints"]):
            assert people.keypoints[0, COCO.index(name)].tolist() == [k, 100 + k, 1 + k % 2]
        assert people.keypoints[0, COCO.index("neck")].tolist() == [5.5, 105.5, 1]
        assert people.num_labelled.tolist() == [17], "the neck is derived"

    def test_without_keypoints_outline_or_crowd_flag_are_kept(self, tmp_path: Path) -> None:
        bare = person(3, 1)
        for key in ("keypoints", "segmentation", "iscrowd"):
            del bare[key]
        people = read_people(tmp_path, bare)
        assert (people.num_labelled.tolist(), people.outlines, people.is_crowd.tolist()) == ([0], [None], [False])
        assert not people.is_labelled.any()

    def test_are_those_of_categories_with_the_keypoints_of_the_skeleton(self, tmp_path: Path) -> None:
        content = document([1], [person(1, 1), person(2, 1, category_id=5, keypoints=[1, 2, 2] * 17)])
        content["categories"].append({"id": 5, "name": "bird", "keypoints": [f"k{number}" for number in range(17)]})
        dataset = read_dataset(write(tmp_path, content))
        assert dataset.people[1].ids.tolist() == [1] and not dataset.background

    def test_real_annotations(self, coco_sample: Path) -> None:
        path = coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json"
        assert read_document(path)["categories"] == [COCO_CATEGORY]
        dataset = read_dataset(path)
        people = dataset.people.values()
        assert len(dataset.images) == 150 and sum(map(len, people)) == 577
        assert sum(p.is_crowd.sum() for p in people) == 14
        assert sum(p.is_labelled.sum() for p in people) == 390
        assert all(outline is not None for p in people for outline in p.outlines)


NOT_JSON = (b"", b"{", b"\xff\xd8\xff\xe0", b"[" * 100_000)
NOT_COCO = (b"[]", b"null", b'[{"image_id": 1, "score": 0.5}]', b'{"images": [], "annotations": 3, "categories": []}')


@pytest.mark.parametrize("reader", [read_dataset, read_split, read_annotation_file])
def test_a_file_of_another_kind_and_a_missing_one_are_refused(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    path = tmp_path / "tiny.json"
    for contents, message in ((NOT_JSON, "is not valid JSON"), (NOT_COCO, "give a COCO keypoint file")):
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError, match=rf"tiny\.json.*{message}"):
                reader(path)
    for missing in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match=f"cannot read annotations {missing}: "):
            reader(missing)


@pytest.mark.parametrize("section", ["images", "annotations"])
def test_a_data_set_needs_its_annotations_or_all_images_would_show_nobody(tmp_path: Path, section: str) -> None:
    content = document([1], [person(1, 1)])
    for lacking in ({key: entries for key, entries in content.items() if key != section}, {**content, section: None}):
        with pytest.raises(DataError, match=f"'{section}' is missing"):
            read_dataset(write(tmp_path, lacking))
    with pytest.raises(DataError, match=f"'{section}' is missing"):
        read_split(write(tmp_path, {**content, section: 0}))


class TestSplit:
    def test_images_and_people_are_read(self, tmp_path: Path) -> None:
        content = document([3, 1], [person(8, 1, labelled=4), crowd(9, 3, (0, 0, 30, 30))])
        keys = ("image_id", "category_id", "keypoints", "num_keypoints", "bbox", "area", "iscrowd")
        people = [{key: entry[key] for key in keys} for entry in content["annotations"]]
        images = [CocoImage(number, f"{number:012d}.jpg", HEIGHT, WIDTH) for number in (3, 1)]
        split = read_split(write(tmp_path, content))
        assert split == Split(images, 1, people, frozenset([1]))

    def test_areas_that_are_not_those_of_the_file_are_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        outlines = [[[20, 20, 70, 20, 70, 80]], []]
        people = [person(k, 1, (20 + k, 20, 50, 60), area=3000, segmentation=outlines[k]) for k in range(2)]
        read_split(write(tmp_path, document([1], people)))
        said = " AP differs from that of programs that use the areas of the file "
        assert [line.split(";")[1] for line in caplog.messages] == [f"{said}[outline-area]", f"{said}[box-area]"]

    def test_image_ids_restrict_the_images(self, tmp_path: Path) -> None:
        path = write(tmp_path, document([1, 2, 3], []))
        assert [image.id for image in read_split(path, [2]).images] == [2]
        with pytest.raises(DataError, match="no image 99; correct the ids"):
            read_split(path, [1, 99])

    @pytest.mark.parametrize("annotations", [[], None, "missing"])
    def test_a_test_set_needs_neither_annotations_nor_keypoint_names(self, tmp_path: Path, annotations: Any) -> None:
        content = document([1], annotations)
        content["categories"] = [{"id": 3, "name": "car"}, {"id": 7, "name": "person"}]
        if annotations == "missing":
            del content["annotations"]
        split = read_split(write(tmp_path, content))
        assert split.category == 7 and not split.people
        del content["categories"]
        assert read_split(write(tmp_path, content)).category == 1
        content["images"][0]["file_name"] = "\0.jpg"
        with pytest.raises(DataError, match="file-name"):
            read_split(write(tmp_path, content))

    def test_people_without_keypoints_are_read_beside_others(self, tmp_path: Path) -> None:
        without_keypoints = crowd(2, 1, (0, 0, 30, 30))
        del without_keypoints["keypoints"]
        split = read_split(write(tmp_path, document([1], [person(1, 1), without_keypoints])))
        assert [entry["num_keypoints"] for entry in split.people] == [17, 0]
        assert split.people[1]["keypoints"] == [0] * 51
        with pytest.raises(DataError, match="annotations without keypoints"):
            read_split(write(tmp_path, document([1], [without_keypoints])))
        with pytest.raises(DataError, match="lists no images"):
            read_split(write(tmp_path, document([], [])))

    def test_keypoints_in_another_order_are_turned_to_that_of_the_skeleton_and_it_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        content = document([1], [person(1, 1, labelled=5)])
        expected = read_split(write(tmp_path, content)).people[0]["keypoints"]
        content["categories"][0]["keypoints"] = list(COCO.file_names[::-1])
        values = np.reshape(content["annotations"][0]["keypoints"], (17, 3))
        content["annotations"][0]["keypoints"] = values[::-1].ravel().tolist()
        assert read_split(write(tmp_path, content)).people[0]["keypoints"] == expected
        assert "keypoint-order" in caplog.text and "tiny.json" in caplog.text

    def test_categories_with_the_same_keypoints_count_as_one(self, tmp_path: Path) -> None:
        names = list(COCO.file_names)
        content = document([1], [person(1, 1, category_id=9), person(2, 1, category_id=5, keypoints=[1, 2, 2])])
        content["categories"] = [
            {"id": 5, "name": "bird", "keypoints": ["beak"]},
            {"id": 7, "name": "cat", "keypoints": names},
            {"id": 9, "name": "dog", "keypoints": names},
        ]
        split = read_split(write(tmp_path, content))
        assert split.category == 7 and [entry["category_id"] for entry in split.people] == [7]


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

    def test_all_three_forms_of_outline_give_one_mask(self, tmp_path: Path) -> None:
        box = (30, 10, 40, 50)
        counts = coco_mask.encode(np.asfortranarray(box_mask(*box)))["counts"].decode()
        text = person(3, 1, box, segmentation={"size": [HEIGHT, WIDTH], "counts": counts})
        for entry in (person(1, 1, box), crowd(2, 1, box), text):
            people = read_people(tmp_path, entry)
            np.testing.assert_array_equal(person_masks(people, HEIGHT, WIDTH)[0], box_mask(*box))

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
                one = {name: column[row : row + 1] for name, column in vars(people).items()}
                if isinstance(outline, np.ndarray):
                    encoded = coco_mask.frPyObjects({"size": list(size), "counts": outline.tolist()}, *size)
                else:
                    encoded = coco_mask.merge(coco_mask.frPyObjects(outline, *size))
                found = person_masks(People(**one), *size)[0]
                np.testing.assert_array_equal(found, coco_mask.decode(encoded))
