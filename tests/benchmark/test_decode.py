"""The benchmark of the decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posenet.benchmark.decode import measure_decode
from posenet.data.targets import TargetRenderer
from posenet.errors import DataError
from posenet.settings import InferenceConfig, TargetsConfig
from posenet.skeleton import COCO


def test_annotations_without_images_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    category = {"id": 1, "name": "person", "keypoints": list(COCO.file_names)}
    path.write_text(json.dumps({"images": [], "annotations": [], "categories": [category]}))
    with pytest.raises(DataError, match="holds no images"):
        measure_decode(path, TargetRenderer(TargetsConfig(), COCO), InferenceConfig(), limit=None, repeats=1)
