"""What contradicts itself in a file of annotations, and what is unusual."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.people import read_dataset, read_split
from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.chairs import NAMES, write_chairs
from tests.helpers.changed_annotations import Change, Document, changed, each, found, kinds, read, setting, write_boxes
from tests.helpers.drawn_data import document, person, write_annotations


def scaled(keypoints: float = 1, boxes: float = 1, sizes: float = 1) -> Change:
    """Multiplies the coordinates of all annotations, and the sizes of all images."""

    def change(content: Document) -> None:
        for entry in content["annotations"]:
            entry["keypoints"] = [v if i % 3 == 2 else v * keypoints for i, v in enumerate(entry["keypoints"])]
            entry["bbox"] = [value * boxes for value in entry["bbox"]]
        for image in content["images"]:
            image.update(width=int(image["width"] * sizes), height=int(image["height"] * sizes))

    return change


def exchange_axes(content: Document) -> None:
    for entry in content["annotations"]:
        entry["keypoints"] = np.reshape(entry["keypoints"], (-1, 3))[:, [1, 0, 2]].ravel().tolist()


@pytest.mark.parametrize(
    "change, code",
    [
        (scaled(sizes=0.95), "outside"),
        (scaled(keypoints=0.75), "box-elsewhere"),
        (scaled(boxes=0.75), "box-elsewhere"),
        (exchange_axes, "outside"),
        (write_boxes(lambda x, y, w, h: [x + w / 2, y + h / 2, w, h]), "box-elsewhere"),
        (write_boxes(lambda x, y, w, h: [x, y, x + w, y + h]), "box-corners"),
        (write_boxes(lambda x, y, w, h: [x - (x + w) / 2, y - (y + h) / 2, x + w, y + h]), "box-corners"),
        (each("images", lambda i: i.update(width=i["height"], height=i["width"])), "outside"),
    ],
    ids=["95 %", "keypoints", "boxes", "axes", "centres", "corners", "corners of YOLO-pose", "sizes"],
)
def test_real_annotations_in_another_frame_contradict_themselves(
    real: Document, tmp_path: Path, change: Change, code: str
) -> None:
    """Such files would be trained on and evaluated, with wrong results."""
    path = write_annotations(tmp_path / "a.json", changed(change, content=real))
    assert kinds(read(real))[code] == "contradiction"
    for reader in (read_dataset, lambda path: read_split(path, skeleton=COCO)):
        with pytest.raises(DataError, match=code):
            reader(path)


@pytest.mark.parametrize(
    "change, code, skeleton",
    [
        (lambda d: d["categories"][0].update(keypoints=[f"k{k}" for k in range(17)]), "no-such-keypoints", COCO),
        (lambda d: d["categories"][0].update(keypoints=["nose", "tail"]), "keypoint-values", None),
        (each("annotations", lambda e: e.update(keypoints=[0] * 51)), "no-keypoints", None),
        (each("annotations", lambda e: e.update(keypoints=e["keypoints"][:50])), "keypoint-values", None),
        (each("annotations", lambda e: e.update(keypoints=[10**400] * 51)), "keypoint-values", None),
        (each("annotations", lambda e: e.update(keypoints=[30, 30, 0] * 17)), "nothing-labelled", None),
        (each("annotations", lambda e: e.update(image_id=77)), "no-image", None),
        (each("images", lambda image: image.pop("height")), "image-size", None),
        (each("images", lambda image: image.update(id=None)), "image-id", None),
        (each("images", lambda image: image.update(file_name="\0")), "file-name", None),
        (lambda d: d["categories"].append(d["categories"][0] | {"name": "b"}), "category-id", None),
    ],
)
def test_what_has_no_right_reading_stops(change: Change, code: str, skeleton: Any, tmp_path: Path) -> None:
    content = changed(change)
    if code == "no-keypoints":
        content["categories"][0]["keypoints"] = []
    file = read(content, skeleton=skeleton)
    assert kinds(file)[code] == "contradiction"
    with pytest.raises(DataError, match=code) as caught:
        file.adjustments.refuse("a.json")
    assert "\n" not in str(caught.value)
    assert run_tool("annotations", ["lint", str(write_annotations(tmp_path / "a.json", content))]) == 2 or skeleton


@pytest.mark.parametrize(
    "change, code, places",
    [
        (lambda d: d["annotations"][0]["keypoints"].__setitem__(2, 0), "unlabelled-place", ["1"]),
        (setting("annotations", 3, bbox=[1, 1, 4, 4]), "far-from-box", ["4"]),
        (
            each("annotations", lambda e: e.update(keypoints=[0, 0, 0, *e["keypoints"][3:]], num_keypoints=None)),
            "never-labelled",
            [NAMES[0]],
        ),
    ],
)
def test_what_may_be_wrong_is_a_warning(tmp_path: Path, change: Change, code: str, places: list[str]) -> None:
    content = json.loads(write_chairs(tmp_path, "train", 14, seed=1)[1].read_text())
    for entry in content["annotations"]:
        entry["keypoints"][:3] = [entry["bbox"][0] + 1, entry["bbox"][1] + 1, 2]
        entry["num_keypoints"] = None
    assert found(read(changed(change, content=content)))[code] == ("warning", places)


def test_people_beyond_the_limit_of_coco_are_named() -> None:
    people = [person(number, 1, (number, 20, 50, 60)) for number in range(21)]
    assert found(read(document([1, 2], people)))["many-people"] == ("warning", [f"{1:012d}.jpg"])
    assert not found(read(document([1, 2], people[:20])))


def test_pairs_that_the_names_contradict_and_people_with_exchanged_sides_are_named() -> None:
    def sides(number: int) -> Document:
        entry = person(number, 1, (number, 20, 50, 60))
        points = np.reshape(entry["keypoints"], (17, 3))
        points[1::2, 0], points[2::2, 0] = number + 40, number + 5
        if number == 7:
            points[[5, 6]] = points[[6, 5]]
        return entry | {"keypoints": points.ravel().tolist()}

    content = document([1], [sides(number) for number in range(1, 31)])
    codes = found(read(content, skeleton=COCO))
    assert codes["swapped-here"][1] == ["7 (left_shoulder, right_shoulder)"] and "flip-pairs" not in codes
    pairs = tuple(pair for pair in COCO.left_right if "left_ear" not in pair)
    other = replace(COCO, left_right=pairs, parts=(), layout={}, drawn=())
    assert found(read(content, skeleton=other))["flip-pairs"][1] == ["left_ear", "right_ear"]
