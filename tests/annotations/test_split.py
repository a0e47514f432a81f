"""Reading the split that a network is evaluated on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posenet.annotations.reading import read_split
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import crowd, document, person, write_annotations

Document = dict[str, Any]


def write(folder: Path, content: Any) -> Path:
    return write_annotations(folder / "split.json", content)


def test_images_and_people_are_read(tmp_path: Path) -> None:
    content = document([3, 1], [person(8, 1, labelled=4), crowd(9, 3, (0, 0, 30, 30))])
    split = read_split(write(tmp_path, content))
    assert [image.id for image in split.images] == [3, 1] and split.category == 1 and split.annotated
    first, second = split.people
    entry = content["annotations"][0]
    for key in ("image_id", "category_id", "keypoints", "area", "bbox", "iscrowd"):
        assert first[key] == entry[key]
    assert first["num_keypoints"] == 4 and second["iscrowd"] == 1


def test_image_ids_restrict_the_images(tmp_path: Path) -> None:
    path = write(tmp_path, document([1, 2, 3], []))
    assert [image.id for image in read_split(path, [2]).images] == [2]
    with pytest.raises(DataError, match="no image 99; correct --image-ids"):
        read_split(path, [1, 99])


@pytest.mark.parametrize("annotations", [[], None, "missing"])
def test_a_test_set_needs_neither_annotations_nor_keypoint_names(tmp_path: Path, annotations: Any) -> None:
    content = document([1], annotations)
    content["categories"] = [{"id": 3, "name": "car"}, {"id": 7, "name": "person"}]
    if annotations == "missing":
        del content["annotations"]
    split = read_split(write(tmp_path, content))
    assert split.category == 7 and not split.annotated
    del content["categories"]
    assert read_split(write(tmp_path, content)).category == 1


def test_people_without_keypoints_and_of_unlisted_images_are_read(tmp_path: Path) -> None:
    without = crowd(2, 1, (0, 0, 30, 30))
    del without["keypoints"]
    empty = crowd(3, 1, (0, 0, 30, 30), keypoints=[])
    content = document([1], [person(1, 99), without, empty])
    del content["annotations"][0]["id"]
    split = read_split(write(tmp_path, content))
    assert [entry["image_id"] for entry in split.people] == [99, 1, 1]
    assert [entry["num_keypoints"] for entry in split.people] == [17, 0, 0]
    assert split.people[1]["keypoints"] == split.people[2]["keypoints"] == [0] * 51


def test_categories_with_the_same_keypoints_count_as_one(tmp_path: Path) -> None:
    names = list(COCO.file_names)
    content = document([1], [person(1, 1, category_id=9), person(2, 1, category_id=5)])
    content["categories"] = [
        {"id": 5, "name": "bird", "keypoints": ["beak"]},
        {"id": 7, "name": "cat", "keypoints": names},
        {"id": 9, "name": "dog", "keypoints": names},
    ]
    split = read_split(write(tmp_path, content))
    assert split.category == 7 and [entry["category_id"] for entry in split.people] == [7]


FAULTS: dict[str, tuple[Callable[[Document], Any], str]] = {
    "no images": (lambda d: d["images"].clear(), "lists no images"),
    "image without a name": (lambda d: d["images"][0].pop("file_name"), "image 1 has no file_name"),
    "path upwards": (lambda d: d["images"][0].update(file_name="../secret.png"), "not a path inside"),
    "absolute path": (lambda d: d["images"][0].update(file_name="/etc/secret.png"), "not a path inside"),
    "other keypoints": (lambda d: d["categories"][0].update(keypoints=["paw", "tail"]), "found: ['paw', 'tail']"),
    "keypoints that are no list": (
        lambda d: d["categories"][0].update(keypoints=5),
        "keypoints 5, which are not a list",
    ),
    "no keypoints": (lambda d: d["annotations"][0].pop("keypoints"), "contains people without keypoints"),
    "no image id": (lambda d: d["annotations"][0].pop("image_id"), "annotation 8 has image_id None"),
    "no category id": (lambda d: d["annotations"][0].pop("category_id"), "annotation 8 has category_id None"),
    "one keypoint": (lambda d: d["annotations"][0].update(keypoints=[1, 2, 2]), "no list of 51 numbers as keypoints"),
    "crowd 2": (lambda d: d["annotations"][0].update(iscrowd=2), "iscrowd 2"),
    "no box": (lambda d: d["annotations"][0].update(bbox=[]), "no list of 4 numbers as bbox"),
    "no area": (lambda d: d["annotations"][0].pop("area"), "annotation 8 has no area;"),
    "negative area": (lambda d: d["annotations"][0].update(area=-5), "negative area"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_with_a_remedy(tmp_path: Path, name: str) -> None:
    spoil, expected = FAULTS[name]
    content = document([1], [person(8, 1)])
    spoil(content)
    path = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_split(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and expected in message
    assert "\n" not in message and "; " in message


@pytest.mark.parametrize("content", [[], 3, {"images": 3}, {"images": [], "annotations": 3}])
def test_json_that_is_not_coco_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match=r"split\.json.*give a COCO keypoint file"):
        read_split(write(tmp_path, content))
