"""Annotations in any format go into stores by the one command that trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from posenet.annotations.find_annotations import are_annotations
from posenet.data.store import Store
from posenet.training.from_annotations import prepare
from tests.helpers.drawn_people import write_dataset
from tests.helpers.other_formats import (
    Document,
    annotations_of,
    read_document,
    write_cvat,
    write_deeplabcut,
    write_label_studio_json,
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Document]:
    """Image folder and annotations of drawn people, some of them hidden."""
    root = tmp_path_factory.mktemp("drawn")
    write_dataset(root, train=6, val=0, size=320)
    return root / "train2017", read_document(root / "annotations" / "person_keypoints_train2017.json")


@pytest.mark.parametrize(
    "writer, name", [(write_cvat, "."), (write_label_studio_json, "project-1.json"), (write_deeplabcut, "config.yaml")]
)
def test_the_stores_have_the_keypoints_that_were_drawn(
    tmp_path: Path, drawn: tuple[Path, Document], writer: Callable[..., Path], name: str
) -> None:
    images, content = drawn
    writer(tmp_path / "set", images, content)
    path = tmp_path / "set" / name
    assert are_annotations(path)
    prepared = prepare(path, [f"checkpoint.path={tmp_path / 'run'}"])
    names = content["categories"][0]["keypoints"]
    drawn_points = [
        np.reshape(entry["keypoints"], (-1, 3))
        for image in content["images"]
        for entry in annotations_of(image, content)
    ]
    num_people = 0
    for split in ("train", "val"):
        with Store(prepared.folder / "data" / f"{split}.h5") as store:
            common = [name for name in store.skeleton.keypoints if name in names]
            rows = [store.skeleton.keypoints.index(name) for name in common]
            for index in range(store.num_images):
                for joints in store.read_record(index).joints[:, rows]:
                    num_people += 1
                    labelled = joints[:, 2] > 0
                    errors = [
                        abs(joints - truth[[names.index(name) for name in common]])[labelled, :2].max()
                        for truth in drawn_points
                    ]
                    assert labelled.any() and min(errors) < 0.01
    assert num_people >= len(content["images"]) / 2  # some first people are small
