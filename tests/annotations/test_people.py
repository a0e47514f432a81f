"""Reading annotation files for a store and for an evaluation: what is kept, and which faults are refused how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.coco import COCO_CATEGORY, CocoImage, read_document
from posenet.annotations.people import CocoDataset, Split, people_of, read_dataset, read_split
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import HEIGHT, WIDTH, crowd, document, person, read_people, write_annotations

Document = dict[str, Any]
Change = Callable[[Document], Any]


def write(folder: Path, content: Any) -> Path:
    return write_annotations(folder / "tiny.json", content)


def read(folder: Path, content: Document) -> CocoDataset:
    return read_dataset(write(folder, content))


class TestPeople:
    def test_stand_with_their_image_in_file_order(self, tmp_path: Path) -> None:
        dataset = read(
            tmp_path,
            document((2, 1, 7), [person(number, 1 + number % 2, (number, 20, 50, 60)) for number in range(60, 0, -1)]),
        )
        assert [image.id for image in dataset.images] == [2, 1, 7]
        ids = {image_id: people.ids.tolist() for image_id, people in dataset.people.items()}
        assert ids == {2: [*range(59, 0, -2)], 1: [*range(60, 0, -2)], 7: []}

    def test_have_keypoints_in_the_order_of_the_skeleton(self, tmp_path: Path) -> None:
        entry = person(1, 1, labelled=0)
        entry["keypoints"] = [value for k in range(17) for value in (k, 100 + k, 1 + k % 2)]
        people = read_people(tmp_path, entry)
        assert people.keypoints.dtype == np.float32 and people.keypoints.shape == (1, 18, 3)
        file_order = "nose left_eye right_eye left_ear right_ear left_shoulder right_shoulder left_elbow right_elbow"
        file_order += " left_wrist right_wrist left_hip right_hip left_knee right_knee left_ankle right_ankle"
        for k, name in enumerate(file_order.split()):
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
        """Also of a file that was read for no skeleton."""
        content = document([1], [person(1, 1), person(2, 1, category_id=5, keypoints=[1, 2, 2] * 17)])
        content["categories"].append({"id": 5, "name": "bird", "keypoints": [f"k{number}" for number in range(17)]})
        dataset = people_of(read_annotation_file(write(tmp_path, content)), COCO)
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
NOT_COCO = (
    b"[]", b"3", b'"COCO"', b"null", b'[{"image_id": 1, "score": 0.5}]', b'{"images": 3}',
    b'{"images": [], "annotations": 3, "categories": []}',
)  # fmt: skip


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
    for name, remedy in {"cvat.zip": "unpack it", "data.yaml": "posenet annotations import "}.items():
        (tmp_path / name).write_bytes(b"PK\x03\x04\xff")
        with pytest.raises(DataError, match=f"{name}.*{remedy}"):
            reader(tmp_path / name)


@pytest.mark.parametrize("section", ["images", "annotations"])
def test_a_data_set_needs_its_annotations_or_all_images_would_show_nobody(tmp_path: Path, section: str) -> None:
    content = document([1], [person(1, 1)])
    for lacking in ({key: entries for key, entries in content.items() if key != section}, {**content, section: None}):
        with pytest.raises(DataError, match=f"'{section}' is missing"):
            read(tmp_path, lacking)
    with pytest.raises(DataError, match=f"'{section}' is missing"):
        read_split(write(tmp_path, {**content, section: 0}))


class TestSplit:
    def test_images_and_people_are_read(self, tmp_path: Path) -> None:
        content = document([3, 1], [person(8, 1, labelled=4), crowd(9, 3, (0, 0, 30, 30))])
        keys = ("image_id", "category_id", "keypoints", "num_keypoints", "bbox", "area", "iscrowd")
        people = [{key: entry[key] for key in keys} for entry in content["annotations"]]
        images = [CocoImage(number, f"{number:012d}.jpg", HEIGHT, WIDTH) for number in (3, 1)]
        split = read_split(write(tmp_path, content))
        assert split == Split(images, 1, people, frozenset([1])) and split.annotated

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
        assert split.category == 7 and not split.annotated
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
