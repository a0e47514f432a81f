"""Reading COCO annotations: what is kept, and which faults are refused with which message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.reading import CocoDataset, read_annotations
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import document, person, read_people, write_annotations

Document = dict[str, Any]


def read(folder: Path, content: Document) -> CocoDataset:
    return read_annotations(write_annotations(folder / "tiny.json", content))


def test_people_stand_with_their_image_in_file_order(tmp_path: Path) -> None:
    dataset = read(tmp_path, document((2, 1, 7), [person(5, 2), person(4, 1), person(3, 2)]))
    assert [image.id for image in dataset.images] == [2, 1, 7]
    assert {key: [p.id for p in people] for key, people in dataset.people.items()} == {2: [5, 3], 1: [4], 7: []}


def test_keypoints_are_in_the_order_of_the_skeleton(tmp_path: Path) -> None:
    entry = person(1, 1, labelled=0)
    entry["keypoints"] = [value for k in range(17) for value in (k, 100 + k, 1 + k % 2)]
    (one,) = read_people(tmp_path, entry)
    assert one.keypoints.dtype == np.float32 and one.keypoints.shape == (18, 3)
    file_order = "nose Leye Reye Lear Rear Lsho Rsho Lelb Relb Lwri Rwri Lhip Rhip Lkne Rkne Lank Rank".split()
    for k, name in enumerate(file_order):
        assert one.keypoints[COCO.index(name)].tolist() == [k, 100 + k, 1 + k % 2]
    assert one.keypoints[COCO.index("neck")].tolist() == [5.5, 105.5, 1]


def test_the_derived_neck_is_not_counted_as_labelled(tmp_path: Path) -> None:
    assert read_people(tmp_path, person(1, 1, labelled=7))[0].num_labelled == 7


def test_unusual_but_valid_entries_are_kept(tmp_path: Path) -> None:
    outside = person(1, 1, (-30, -20, 50, 60))
    empty = person(2, 1, (10, 10, 0, 0))
    bare = person(3, 1)
    del bare["keypoints"], bare["segmentation"], bare["iscrowd"]
    first, second, third = read_people(tmp_path, outside, empty, bare)
    assert first.keypoints[0].tolist() == [-30, -20, 2]
    assert second.box.tolist() == [10, 10, 0, 0]
    assert third.num_labelled == 0 and third.segmentation is None and not third.crowd and not third.labelled


def test_categories_with_other_keypoints_are_left_out(tmp_path: Path) -> None:
    content = document([1], [person(1, 1), person(2, 1, category_id=2, keypoints=[])])
    content["categories"].append({"id": 2, "name": "kite"})
    assert [p.id for p in read(tmp_path, content).people[1]] == [1]


def test_a_file_without_people_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, document([1, 2], [])).people == {1: [], 2: []}


def test_real_annotations_are_read(coco_sample: Path) -> None:
    dataset = read_annotations(coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json")
    people = [p for image in dataset.images for p in dataset.people[image.id]]
    assert len(dataset.images) == 150 and len(people) == 577
    assert sum(p.crowd for p in people) == 14 and sum(p.labelled for p in people) == 390
    assert all(p.segmentation is not None for p in people)


def image(**changes: Any) -> Callable[[Document], Any]:
    return lambda content: content["images"][0].update(changes)


def annotation(**changes: Any) -> Callable[[Document], Any]:
    return lambda content: content["annotations"][0].update(changes)


def repeated(section: str) -> Callable[[Document], Any]:
    return lambda content: content[section].append(dict(content[section][0]))


def without_section(section: str) -> Callable[[Document], Any]:
    return lambda content: content.pop(section)


def without(section: str, key: str) -> Callable[[Document], Any]:
    return lambda content: content[section][0].pop(key)


FAULTS = {
    "no images": (without_section("images"), "'images'"),
    "no annotations": (without_section("annotations"), "'annotations'"),
    "no categories": (without_section("categories"), "'categories'"),
    "images are numbers": (lambda content: content.update(images=[1]), "'images'"),
    "other keypoints": (lambda content: content["categories"][0].update(keypoints=["nose", "tail"]), "tail"),
    "no keypoint names": (without("categories", "keypoints"), "no category has the keypoints nose, left_eye"),
    "nested names": (lambda content: content["categories"][0].update(keypoints=[[[["nose"]]]]), "no category"),
    "image id twice": (repeated("images"), "image id 1 appears twice"),
    "annotation id twice": (repeated("annotations"), "annotation id 8 appears twice"),
    "unknown image": (annotation(image_id=99), "annotation 8 has image_id 99, which is not listed"),
    "unknown category": (annotation(category_id=99), "annotation 8 has category_id 99, which is not listed"),
    "annotation without id": (without("annotations", "id"), "annotation id None is not a whole number"),
    "image id is text": (image(id="1"), "image id '1' is not a whole number"),
    "image id too large": (image(id=2**63), "is not a whole number"),
    "category id is true": (lambda content: content["categories"][0].update(id=True), "category id True is not"),
    "no file name": (without("images", "file_name"), "no file_name"),
    "no height": (without("images", "height"), "image 1 has height None, which is not a whole number"),
    "no width": (without("images", "width"), "width"),
    "zero height": (image(height=0), "impossible size"),
    "gigantic width": (image(width=10**9), "impossible size"),
    "path upwards": (image(file_name="../1.jpg"), "'../1.jpg'"),
    "path upwards inside": (image(file_name="a/../../1.jpg"), "inside the image folder"),
    "path upwards, Windows": (image(file_name="a\\..\\..\\1.jpg"), "inside the image folder"),
    "absolute path": (image(file_name="/etc/passwd"), "inside the image folder"),
    "absolute path, Windows": (image(file_name="C:\\1.jpg"), "inside the image folder"),
    "zero byte in path": (image(file_name="1\0.jpg"), "inside the image folder"),
    "half a character in path": (image(file_name="\ud800.jpg"), "inside the image folder"),
    "too few keypoints": (annotation(keypoints=[0] * 50), "annotation 8 has no list of 51 numbers as keypoints"),
    "no keypoint at all": (annotation(keypoints=[]), "no list of 51 numbers"),
    "keypoints are text": (annotation(keypoints=["1"] * 51), "value in keypoints that is not a finite number"),
    "keypoint NaN": (annotation(keypoints=[float("nan")] * 51), "annotation 8 has a value in keypoints that is not"),
    "absurd keypoint": (annotation(keypoints=[1e300] * 51), "not a finite number below 1e+12"),
    "endless integer": (annotation(area=10**400), "value in area that is not a finite number"),
    "visibility 7": (annotation(keypoints=[1, 1, 7] * 17), "annotation 8 has a visibility"),
    "no box": (without("annotations", "bbox"), "no list of 4 numbers as bbox"),
    "short box": (annotation(bbox=[1, 2, 3]), "no list of 4 numbers as bbox"),
    "infinite box": (annotation(bbox=[0, 0, float("inf"), 1]), "not a finite number"),
    "negative box": (annotation(bbox=[0, 0, -1, 1]), "box of negative size"),
    "no area": (without("annotations", "area"), "has no area"),
    "negative area": (annotation(area=-1), "negative area"),
    "area NaN": (annotation(area=float("nan")), "not a finite number"),
    "polygon NaN": (annotation(segmentation=[[0, 0, 5, float("nan"), 5, 5]]), "segmentation"),
    "endless polygon": (annotation(segmentation=[[0, 0, 5, 10**400, 5, 5.0]]), "segmentation"),
    "crowd 2": (annotation(iscrowd=2), "iscrowd 2"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_with_a_remedy(tmp_path: Path, name: str) -> None:
    spoil, expected = FAULTS[name]
    content = document([1], [person(8, 1)])
    spoil(content)
    path = write_annotations(tmp_path / "spoiled.json", content)
    with pytest.raises(DataError) as caught:
        read_annotations(path)
    message = str(caught.value)
    _, remedy = message.split("; ", 1)
    assert message.startswith(f"{path}: ") and expected in message
    assert "\n" not in message
    assert remedy.endswith(("(posenet lint-annotations lists all problems)", "give a COCO keypoint file"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xd8\xff\xe0", b"[" * 100_000], ids=["empty", "cut off", "a JPEG", "deep"]
)
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not\.json is not valid JSON"):
        read_annotations(path)


@pytest.mark.parametrize("content", [[], 3, "COCO", None, [{"image_id": 1, "score": 0.5}]])
def test_json_that_is_not_coco_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match="tiny.json.*not a COCO data set"):
        read_annotations(write_annotations(tmp_path / "tiny.json", content))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match=f"cannot read annotations {path}: "):
            read_annotations(path)
