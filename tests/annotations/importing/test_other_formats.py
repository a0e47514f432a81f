"""A drawn set, written as other tools export it, arrives in a store with the keypoints that were drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.data.store import Store
from posenet.skeleton import load_skeleton
from tests.helpers.drawn_people import write_dataset
from tests.helpers.other_formats import (
    CROWD_POSE_NAMES,
    Document,
    read_document,
    write_crowdpose,
    write_cvat,
    write_label_studio_coco,
    write_label_studio_json,
    write_labelme,
    write_yolo_pose,
)

DrawnSet = tuple[Path, Document]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DrawnSet:
    """Image folder and annotations of drawn people, some of them hidden."""
    root = tmp_path_factory.mktemp("drawn")
    write_dataset(root, train=6, val=0, size=320)
    return root / "train2017", read_document(root / "annotations" / "person_keypoints_train2017.json")


def posenet(tool: str, *arguments: Any) -> None:
    assert run_tool(tool, [str(argument) for argument in arguments]) == 0


def fix(annotations: Path, images: Path, output: Path) -> None:
    posenet("annotations", "fix", annotations, "--images", images, "--skeleton", "coco", "--output", output)


def build_and_compare(annotations: Path, images: Path, drawn: DrawnSet, tolerance: float, hidden: bool = True) -> None:
    """Build a store, and find every stored person among the drawn ones of the image of the same name.

    Args:
        tolerance: largest distance of a keypoint, in pixels.
        hidden: whether the format distinguishes hidden keypoints.
    """
    store_path = annotations.parent / "store.h5"
    posenet("build-hdf5", "--images", images, "--annotations", annotations, "--output", store_path, "--workers", 1)
    truth: dict[str, list[np.ndarray]] = {}
    for image in drawn[1]["images"]:
        entries = [entry for entry in drawn[1]["annotations"] if entry["image_id"] == image["id"]]
        truth[image["file_name"]] = [np.reshape(entry["keypoints"], (-1, 3)).astype(float) for entry in entries]
    num_people = 0
    with Store(store_path) as store:
        skeleton = store.skeleton
        for row in range(store.num_images):
            record = store.read_record(row)
            expected = skeleton.to_network_order(np.array(truth[Path(record.file_name).name]))
            for found in record.joints:
                num_people += 1
                labelled = found[:, 2] > 0
                assert labelled.any()
                same = [person for person in expected if np.array_equal(person[:, 2] > 0, labelled)]
                errors = [np.abs(person[labelled, :2] - found[labelled, :2]).max() for person in same]
                assert min(errors) <= tolerance
                if hidden:
                    assert any(np.array_equal(person[:, 2], found[:, 2]) for person in same)
    labelled_in_truth = sum((person[:, 2] > 0).any() for people in truth.values() for person in people)
    assert num_people >= 0.8 * labelled_in_truth  # images without a main person are left out


@pytest.mark.parametrize("dimensions", [3, 2])
def test_yolo_pose(tmp_path: Path, drawn: DrawnSet, dimensions: int, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'simplepose[yolo]'")
    data = write_yolo_pose(tmp_path / "set", *drawn, dimensions)
    out = tmp_path / "train.json"
    posenet("annotations", "import", data, "--output", out)
    shown = capsys.readouterr().out
    folder = tmp_path / "set" / "images" / "train"
    assert f"next: posenet annotations lint {out} --images {folder}" in shown and "6 images, " in shown
    posenet("annotations", "lint", out, "--images", folder, "--skeleton", "coco")
    build_and_compare(out, folder, drawn, tolerance=0.01, hidden=dimensions == 3)


def test_the_coco_keypoints_of_cvat(tmp_path: Path, drawn: DrawnSet) -> None:
    (tmp_path / "archive").mkdir()
    annotations = write_cvat(tmp_path / "archive", *drawn)
    folder = tmp_path / "archive" / "images" / "default"
    out = tmp_path / "train.json"
    fix(annotations, folder, out)
    build_and_compare(out, folder, drawn, tolerance=0.01)


def test_the_coco_export_of_label_studio_with_one_person_in_every_image(tmp_path: Path, drawn: DrawnSet) -> None:
    images, content = drawn
    content = content | {"annotations": first_people(content)}
    (tmp_path / "export").mkdir()
    annotations = write_label_studio_coco(
        tmp_path / "export", images, content, "../../label-studio/data/media/upload/1/"
    )
    folder = tmp_path / "export" / "images"
    out = tmp_path / "train.json"
    fix(annotations, folder, out)
    build_and_compare(out, folder, (images, content), tolerance=0.51, hidden=False)


def first_people(content: Document) -> list[dict[str, Any]]:
    """The first annotation of every image with many labelled keypoints."""
    chosen: dict[int, dict[str, Any]] = {}
    for entry in content["annotations"]:
        if not entry["iscrowd"] and entry["num_keypoints"] > 8:
            chosen.setdefault(entry["image_id"], entry)
    return list(chosen.values())


def test_the_json_export_of_label_studio(tmp_path: Path, drawn: DrawnSet) -> None:
    (tmp_path / "export").mkdir()
    tasks = write_label_studio_json(tmp_path / "export", *drawn)
    out = tmp_path / "train.json"
    folder = tmp_path / "export" / "images"
    posenet("annotations", "import", tasks, "--images", folder, "--output", out)
    posenet("annotations", "lint", out, "--images", folder, "--skeleton", "coco")
    build_and_compare(out, folder, drawn, tolerance=0.01, hidden=False)
    assert len(json.loads(out.read_text())["annotations"]) == sum(not e["iscrowd"] for e in drawn[1]["annotations"])


def test_labelme(tmp_path: Path, drawn: DrawnSet) -> None:
    folder = write_labelme(tmp_path / "labelme", *drawn)
    out = tmp_path / "train.json"
    posenet("annotations", "import", folder, "--output", out)
    build_and_compare(out, folder, drawn, tolerance=0.01, hidden=False)
    boxes = [entry["bbox"] for entry in read_document(out)["annotations"]]
    expected = [entry["bbox"] for entry in drawn[1]["annotations"] if not entry["iscrowd"]]
    np.testing.assert_allclose(boxes, expected, atol=1e-3)


def test_crowdpose(tmp_path: Path, drawn: DrawnSet) -> None:
    annotations = write_crowdpose(tmp_path / "set", *drawn)
    out, toml = tmp_path / "train.json", tmp_path / "crowdpose.toml"
    posenet("annotations", "import", annotations, "--output", out)
    found = read_document(out)
    assert compare_named_keypoints(found, drawn[1], CROWD_POSE_NAMES)
    assert found["categories"][0]["skeleton"] == []  # the file has edges of COCO's 17 keypoints
    posenet("annotations", "fix", out, "--images", tmp_path / "set" / "images", "--output", tmp_path / "fixed.json")
    posenet("annotations", "skeleton", tmp_path / "fixed.json", "--output", toml)
    assert len(load_skeleton(toml).left_right) == 6


def compare_named_keypoints(found: Document, expected: Document, names: list[str]) -> int:
    """Compare the keypoints of COCO among ``names``, and return how many people there are."""
    coco = expected["categories"][0]["keypoints"]
    common = [name for name in names if name in coco]
    entries = [entry for entry in expected["annotations"] if not entry["iscrowd"]]
    for entry, own in zip(entries, found["annotations"], strict=True):
        points, truth = (np.reshape(item["keypoints"], (-1, 3)) for item in (own, entry))
        np.testing.assert_allclose(
            points[[names.index(name) for name in common]], truth[[coco.index(name) for name in common]], atol=1e-9
        )
    return len(entries)
