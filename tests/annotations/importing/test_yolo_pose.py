"""YOLO-pose: where images and labels are found, names of keypoints, and messages for bad files."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.importing.formats import read_annotations
from posenet.cli.main import run_tool
from posenet.errors import ConfigError, DataError
from posenet.skeleton import COCO
from tests.helpers.changed_annotations import found
from tests.helpers.drawn_data import document, person, write_images
from tests.helpers.oriented_images import oriented_image
from tests.helpers.other_formats import imported, normal_file, write_yolo_pose

pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'simplepose[yolo]'")

CONTENT = document([1, 2, 3], [person(1, 1), person(2, 1, (90, 20, 50, 60), labelled=9), person(3, 2)])
COCO_FLIP = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Three images, of which the last has no label file."""
    return write_yolo_pose(tmp_path / "set", write_images(tmp_path / "drawn", CONTENT), CONTENT, flip_idx=COCO_FLIP)


def change(data_file: Path, **settings: Any) -> None:
    """Replaces keys of data.yaml; None removes one."""
    lines = [line for line in data_file.read_text().splitlines() if line.partition(":")[0] not in settings]
    lines += [f"{key}: {value}" for key, value in settings.items() if value is not None]
    data_file.write_text("\n".join(lines))


def labels_of(data_file: Path) -> list[Path]:
    return sorted((data_file.parent / "labels" / "train").iterdir())


def test_values_are_converted_to_pixels(data_file: Path) -> None:
    folder = data_file.parent / "images" / "train"
    notes = ("images without a label file, which show nobody: 1 (000000000003.jpg)",)
    assert read_annotations(data_file) == (imported(CONTENT, flip_idx=COCO_FLIP), folder, notes)


def test_the_classes_are_categories(data_file: Path) -> None:
    label = labels_of(data_file)[1]
    label.write_text("\n2" + label.read_text()[1:])
    expected = imported(CONTENT)
    expected["annotations"][2]["category_id"] = 3
    [first] = expected["categories"]
    expected["categories"] = [first, first | {"id": 2, "name": "7"}, first | {"id": 3, "name": "dog"}]
    for names in ("{2: dog, 0: person, 1: 7}", "[person, 7, dog]"):
        change(data_file, names=names, flip_idx=None)
        assert read_annotations(data_file).document == expected


def test_the_tool_writes_a_split_and_names_the_next_command(
    data_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change(data_file, val="images/train")

    def run(*words: object, status: int = 0) -> tuple[str, str]:
        assert run_tool("annotations", ["import", str(data_file), *map(str, words)]) == status
        return capsys.readouterr()

    shown, _ = run("--split", "val", "--output", "a.json")
    assert "wrote a.json" in shown and "annotations lint a.json --images" in shown
    assert Path("a.json").read_text() == run("--output", "-")[0]
    assert "--overwrite" in run("--output", "a.json", status=2)[1]
    assert "leave out --images DIR" in run("--images", tmp_path, "--output", "-", status=2)[1]


@pytest.mark.parametrize("folder, suffix", [("images", ".jpg"), ("labels", ".txt")])
def test_the_tool_replaces_neither_an_image_nor_its_labels(
    data_file: Path, folder: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only data.yaml tells where they are; no flag names them."""
    path = data_file.parent / folder / "train" / f"000000000001{suffix}"
    before = path.read_bytes()
    assert run_tool("annotations", ["import", str(data_file), "--output", str(path), "--overwrite"]) == 2
    assert "would replace an input" in capsys.readouterr().err and path.read_bytes() == before


def test_label_files_with_other_names_than_their_images_are_refused(data_file: Path) -> None:
    for label in labels_of(data_file):
        label.rename(label.with_stem(f"photo_{label.stem}"))
    with pytest.raises(DataError, match=r"3 images has a label file, .*000000000001.txt"):
        read_annotations(data_file)


def test_the_set_may_have_moved_and_may_be_listed_in_other_ways(data_file: Path) -> None:
    expected = read_annotations(data_file).document
    train = data_file.parent / "images" / "train"
    names = sorted(path.name for path in train.iterdir())
    (data_file.parent / "train.txt").write_text("".join(f"./images/train/{name}\n" for name in names))
    for settings in (
        {"path": "/nowhere"},
        {"path": None},
        {"path": None, "train": "../images/train"},  # as Roboflow writes it
        {"path": "'C:\\data\\set'", "train": "'C:\\data\\set\\images\\train'"},
        {"train": "/home/ann/set/images/train", "path": None},
        {"train": "train.txt"},
        {"train": "[images/train]"},
        {"val": "images/train", "train": None},
    ):
        change(data_file, **settings)
        assert read_annotations(data_file, split="val" if "val" in settings else "train").document == expected
    moved = data_file.parent.rename(data_file.parent.with_name("images"))  # the labels are beside the inner images/
    assert read_annotations(moved / "data.yaml", split="val").document == expected


@pytest.mark.parametrize("line", ["images/train/{}", "data/images/train/{}", "./images/train/{}", "obj_train_data/{}"])
def test_a_list_may_name_images_relative_to_its_own_folder(data_file: Path, line: str) -> None:
    """As CVAT does, also with the folder of an earlier format in front."""
    root = data_file.parent
    if line.startswith("obj"):
        (root / "images" / "train").rename(root / "obj_train_data")
        for path in labels_of(data_file):
            path.rename(root / "obj_train_data" / path.name)
    names = [f"{number:012d}.jpg" for number in (1, 2, 3)]
    (root / "train.txt").write_text("".join(line.format(name) + "\n" for name in names))
    change(data_file, path=".", train="train.txt")
    assert [image["file_name"] for image in read_annotations(data_file).document["images"]] == names


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only names in Unicode")
def test_a_file_name_that_is_not_utf_8_is_one_line(data_file: Path) -> None:
    images = data_file.parent / "images" / "train"
    (images / "000000000003.jpg").rename(images / os.fsdecode(b"caf\xe9.jpg"))
    file = normal_file(read_annotations(data_file))
    assert len(file.images) == 2 and found(file)["file-name"] == ("left out", ["3"])


def test_a_keypoint_without_visibility_is_labelled_unless_at_zero_or_negative(tmp_path: Path) -> None:
    content = document([1], [person(1, 1)])
    content["annotations"][0]["keypoints"][:6] = [0, 0, 2, -16, 12, 2]
    data_file = write_yolo_pose(tmp_path / "set", write_images(tmp_path / "drawn", content), content, dimensions=2)
    [entry] = read_annotations(data_file).document["annotations"]
    assert entry["keypoints"][:6] == [0] * 6
    assert set(entry["keypoints"][8::3]) == {2}


def test_a_label_file_may_begin_with_a_byte_order_mark(data_file: Path) -> None:
    """As Notepad on Windows writes it."""
    before = read_annotations(data_file).document
    for label in labels_of(data_file):
        label.write_bytes(b"\xef\xbb\xbf" + label.read_bytes())
    assert read_annotations(data_file).document == before


@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_labels_belong_to_the_displayed_image(tmp_path: Path, orientation: int) -> None:
    drawn = oriented_image(orientation)
    height, width = drawn.sizes["displayed"]
    x, y = drawn.centres["displayed"]
    content = document([1], [person(1, 1, (x - 16, y - 16, 32, 32))])
    content["images"][0] |= {"file_name": "a.jpg", "height": height, "width": width}
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn" / "a.jpg").write_bytes(drawn.data)
    found = read_annotations(write_yolo_pose(tmp_path / "set", tmp_path / "drawn", content)).document
    assert (found["images"][0]["height"], found["images"][0]["width"]) == (height, width)
    np.testing.assert_allclose(found["annotations"][0]["bbox"], [x - 16, y - 16, 32, 32], atol=1e-2)


def test_keypoints_are_named_by_the_file_or_are_those_of_coco(data_file: Path) -> None:
    names = [f"k{number}" for number in range(17)]

    def names_of() -> list[str]:
        return read_annotations(data_file).document["categories"][0]["keypoints"]

    assert names_of() == list(COCO.file_names)
    change(data_file, kpt_names=f"{{0: {names}}}")
    assert names_of() == names
    for bad in (names[:3], [*names[:16], "k0"]):
        change(data_file, kpt_names=f"{{0: {bad}}}")
        with pytest.raises(DataError, match="kpt_names must be .* 17"):
            names_of()
    change(data_file, kpt_names=None, flip_idx="[]", kpt_shape="[5, 3]")
    for label in labels_of(data_file):
        label.write_text("0 0.5 0.5 0.4 0.4" + " 0.5 0.5 2" * 5)
    assert names_of() == [f"keypoint_{number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kpt_shape": None}, "no kpt_shape"),
        ({"kpt_shape": "[17, 4]"}, "no kpt_shape"),
        ({"kpt_shape": "17"}, "no kpt_shape"),
        ({"names": "{0: person, dog: 1}"}, "data.yaml cannot be read"),
        ({"names": None}, "class 0 has no name"),
        ({"kpt_shape": "[17, 2]"}, "56 numbers, 39 are expected for 17 keypoints"),
        ({"names": "{4: dog}"}, "class 0 has no name"),
        ({"train": "images/other"}, "images/other does not exist"),
        ({"train": None}, "no split train"),
        ({"train": "[1]"}, "no split train"),
        ({"train": "'['"}, "does not exist"),
        ({"bad": "[1"}, "data.yaml cannot be read"),
        ({"bad": "!!timestamp x"}, "data.yaml cannot be read"),
    ],
)
def test_a_bad_data_file_is_one_line(data_file: Path, settings: dict[str, Any], message: str) -> None:
    change(data_file, **settings)
    with pytest.raises(DataError, match=message) as caught:
        read_annotations(data_file)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(data_file: Path) -> None:
    label = labels_of(data_file)[1]
    label.unlink()
    label.mkdir()
    assert any(f": 1 (cannot use {label}: " in note for note in read_annotations(data_file).notes)
    data_file.write_text("- 7")
    with pytest.raises(DataError, match=f"{data_file} is not a data.yaml"):
        read_annotations(data_file)
    data_file.unlink()
    with pytest.raises(DataError, match=f"cannot use {data_file}: No such file"):
        read_annotations(data_file)


def test_a_few_images_that_cannot_be_used_are_left_out_and_named(data_file: Path) -> None:
    """Not their lines alone: the objects in these would be background."""
    expected = [entry for entry in read_annotations(data_file).document["annotations"] if entry["image_id"] == 1]
    label = labels_of(data_file)[1]
    faults = {
        "0 0.5 0.5 0.1": "4 numbers, 56 are expected",
        "0 " + "x " * 55: "could not convert",
        "0 0.5 0.5 " + "inf " * 53: "inf is no fraction",
        "0.5 " + "0.5 " * 55: "class 0.5 has no name",
        "0 320.5 " + "0.5 " * 54: "320.5 is no fraction",
        "0 " + "0.5 " * 4 + "35.0 40.0 2 " + "0.5 0.5 2 " * 16: "40 is no fraction",
    }
    for line, fault in faults.items():
        label.write_text("\n\n" + line)
        content, _, notes = read_annotations(data_file)
        assert content["annotations"] == expected and len(content["images"]) == 2
        assert any(re.search(rf"left out: 1 \(.*000000000002.txt, line 3: {fault}", note) for note in notes)
    labels_of(data_file)[0].write_text("0")
    with pytest.raises(DataError, match=r"000000000001.txt, line 1: 1 numbers.* \(and 1 more\)"):
        read_annotations(data_file)


def test_an_object_of_five_numbers_is_a_place_that_training_ignores(data_file: Path) -> None:
    labels = labels_of(data_file)
    with open(labels[1], "a") as file:
        file.write("0 0.5 0.25 0.1 0.2\n")
    entry = read_annotations(data_file).document["annotations"][-1]
    assert not any(entry["keypoints"])
    assert (entry["bbox"], entry["image_id"]) == ([72, 18, 16, 24], 2)


def test_without_pyyaml_the_message_names_the_extra(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"simplepose\[yolo\]"):
        read_annotations(data_file)
