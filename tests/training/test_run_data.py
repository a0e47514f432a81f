"""The data of a run: images that are trained on and validated on are refused, whatever their ids."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posenet.data.store import Store
from posenet.data.store_list import describe_content, open_data_sets
from posenet.errors import DataError
from posenet.settings import DataSetConfig, load_config
from posenet.skeleton import COCO
from posenet.training.fingerprints import describe_contents
from tests.helpers.drawn_data import write_annotations, write_store
from tests.helpers.tiny_training import Stores, coco_settings, train_tiny


def test_a_validation_store_with_renumbered_training_images_is_refused(stores: Stores, tmp_path: Path) -> None:
    with Store(stores["train"]) as train, Store(stores["val"]) as val:
        shared = train.read_record(2)._replace(image_id=77, file_name="renamed.jpg")
        path = write_store(tmp_path / "val.h5", [val.read_record(0), shared])
    settings = f"data.val={path}"
    with pytest.raises(DataError, match=r"share 1 images \(first id in data.val 77\); .*data\.allow_overlap=true"):
        train_tiny(stores, tmp_path / "run", settings)
    assert train_tiny(stores, tmp_path / "run", settings, "data.allow_overlap=true", max_steps=1).steps == 1


@pytest.fixture
def mixed(tiny_coco: Path, tmp_path: Path) -> Path:
    """The validation images, one of which is a copy of a training image."""
    folder = tmp_path / "coco"
    shutil.copytree(tiny_coco, folder)
    path = folder / "annotations" / "person_keypoints_val2017.json"
    content: dict[str, Any] = json.loads(path.read_text())
    train = json.loads((folder / "annotations" / "person_keypoints_train2017.json").read_text())["images"][1]
    shutil.copy(folder / "train2017" / train["file_name"], folder / "val2017" / "copy.jpg")
    content["images"].append(train | {"id": 999, "file_name": "copy.jpg"})
    write_annotations(path, content)
    return folder


def test_an_ap_of_images_that_are_trained_on_is_refused(stores: Stores, tmp_path: Path, mixed: Path) -> None:
    settings = (*coco_settings(mixed), "data.val=", "train.epochs=1")
    with pytest.raises(DataError, match=r"contains 1 of 4 images of data\.val_images .*copy\.jpg.*data\.allow_overlap"):
        train_tiny(stores, tmp_path / "run", *settings)
    train_tiny(stores, tmp_path / "run", *settings, "data.allow_overlap=true", max_steps=1)


def test_ranks_compare_the_stores_the_weights_of_several_and_the_annotations(stores: Stores, tmp_path: Path) -> None:
    annotations = tmp_path / "a.json"
    annotations.write_text("{}")
    config = load_config(None, [f"data.val_annotations={annotations}"])
    sets = tuple(DataSetConfig(str(stores[split]), weight=weight) for split, weight in (("train", 2.5), ("val", 1.0)))
    with open_data_sets(sets, COCO) as both, open_data_sets(str(stores["val"]), COCO) as one:
        assert describe_contents(config, both, one, None, has_ap=True) == {
            "data.train": f"{describe_content(both)} and the weights [2.5, 1.0]",
            "data.val": describe_content(one),
            "data.val_annotations": hashlib.sha256(b"{}").hexdigest()[:8],
        }
        assert describe_contents(config, one, None, None, has_ap=False) == {"data.train": describe_content(one)}
