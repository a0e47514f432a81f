"""A drawn set, written as other tools export it, arrives in a store with the keypoints that were drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.importing.formats import read_annotations
from posenet.cli.main import run_tool
from posenet.data.store import Store
from posenet.skeleton import load_skeleton
from tests.helpers.drawn_people import write_dataset
from tests.helpers.other_formats import (
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


def first_people(content: Document) -> Document:
    """With only the first annotation of every image that has many labelled keypoints."""
    chosen: dict[int, dict[str, Any]] = {}
    for entry in content["annotations"]:
        if not entry["iscrowd"] and entry["num_keypoints"] > 8:
            chosen.setdefault(entry["image_id"], entry)
    return content | {"annotations": list(chosen.values())}


@pytest.mark.parametrize(
    "writer, options, tolerance, hidden",
    [
        (write_yolo_pose, {"dimensions": 3}, 0.01, True),
        (write_yolo_pose, {"dimensions": 2}, 0.01, False),
        (write_cvat, {}, 0.01, True),
        (write_label_studio_json, {}, 0.01, False),
        (write_label_studio_coco, {"prefix": "../../label-studio/data/media/upload/1/"}, 0.51, False),
        (write_labelme, {}, 0.01, False),
    ],
)
def test_an_export_arrives_in_a_store(
    tmp_path: Path, drawn: DrawnSet, writer: Callable[..., Path], options: Any, tolerance: float, hidden: bool
) -> None:
    """Keypoints are at most ``tolerance`` pixels from where they were drawn, and hidden if the format says that."""
    if writer is write_yolo_pose:
        pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'simplepose[yolo]'")
    images, content = drawn
    if writer is write_label_studio_coco:  # it joins the keypoints of all people of an image
        content = first_people(content)
    root = tmp_path / "set"
    if writer not in (write_yolo_pose, write_labelme):
        root.mkdir()
    path, out = writer(root, images, content, **options), tmp_path / "train.json"
    posenet("annotations", "import", path, "--output", out)
    folder = read_annotations(path).folder
    posenet("annotations", "lint", out, "--images", folder, "--skeleton", "coco")
    store = tmp_path / "store.h5"
    posenet("build-hdf5", "--images", folder, "--annotations", out, "--output", store, "--workers", 1)
    compare(store, content, tolerance, hidden)


def compare(path: Path, content: Document, tolerance: float, hidden: bool) -> None:
    """Find every stored person among the drawn ones of the image of the same name."""
    truth: dict[str, list[np.ndarray]] = {}
    for image in content["images"]:
        entries = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        truth[image["file_name"]] = [np.reshape(entry["keypoints"], (-1, 3)).astype(float) for entry in entries]
    num_people = 0
    with Store(path) as store:
        for row in range(store.num_images):
            record = store.read_record(row)
            expected = store.skeleton.to_network_order(np.array(truth[Path(record.file_name).name]))
            for found in record.joints:
                num_people += 1
                labelled = found[:, 2] > 0
                assert labelled.any()
                same = [person for person in expected if np.array_equal(person[:, 2] > 0, labelled)]
                assert min(np.abs(person[labelled, :2] - found[labelled, :2]).max() for person in same) <= tolerance
                assert not hidden or any(np.array_equal(person[:, 2], found[:, 2]) for person in same)
    labelled_in_truth = sum((person[:, 2] > 0).any() for people in truth.values() for person in people)
    assert num_people >= 0.8 * labelled_in_truth  # images without a main person are left out


def test_crowdpose_has_edges_of_other_keypoints_and_all_pairs(tmp_path: Path, drawn: DrawnSet) -> None:
    annotations = write_crowdpose(tmp_path / "set", *drawn)
    out, toml = tmp_path / "train.json", tmp_path / "crowdpose.toml"
    posenet("annotations", "import", annotations, "--output", out)
    [category] = read_document(out)["categories"]
    assert category["skeleton"] == []  # the file has those of COCO's 17 keypoints
    posenet("annotations", "skeleton", out, "--output", toml)
    assert len(load_skeleton(toml).left_right) == 6
