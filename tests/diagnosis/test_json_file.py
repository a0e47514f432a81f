"""The fields of ``diagnosis.json`` on which other programs rely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.compare import compare
from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.error_kinds import CORRECTIONS, KEYPOINT_KINDS
from posenet.diagnosis.json_file import MAX_CHANGED_IMAGES, write_diagnosis_file
from posenet.skeleton import COCO
from tests.helpers.coco_results import random_results


def test_the_file_has_the_numbers_of_diagnoses(document: dict[str, Any], annotation_file: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    diagnoses = [
        diagnose(annotation_file, random_results(document, rng), name=name, progress=False) for name in ("one", "two")
    ]
    diagnosis = diagnoses[0]
    content = json.loads(write_diagnosis_file([diagnosis], [], tmp_path, {"Flip": "yes"}).read_text())
    assert content["name"] == "one" and content["AP"] == diagnosis.ap == content["metrics"]["AP"]
    assert content["counts"] == diagnosis.counts and content["counts"].keys() == set(KEYPOINT_KINDS)
    assert list(content["keypoints"]) == list(COCO.file_names) and content["keypoints"] == diagnosis.keypoints
    assert list(content["corrected"]) == list(content["alone"]) == list(CORRECTIONS)
    assert content["corrected"] == diagnosis.corrected and content["alone"] == diagnosis.alone
    assert content["background"] == diagnosis.background == content["background_by_threshold"][0]
    assert content["missed"] == diagnosis.missed == content["missed_by_threshold"][0]
    assert len(content["AP_by_threshold"]) == len(content["oks_thresholds"]) == 10
    for kind in CORRECTIONS:
        assert np.mean(content["corrected_by_threshold"][kind]) == pytest.approx(content["corrected"][kind])
        assert np.mean(content["alone_by_threshold"][kind]) == pytest.approx(content["alone"][kind])
    assert (
        content["corrected"]["background"] < content["missed_at_50"]["corrected"] < content["corrected"]["missed"] == 1
    )
    assert content["sensitivity"]["size"][0].keys() == {"name", "people", "AP", "counts", "missed"}
    assert content["provenance"] == {"Flip": "yes"} and not {"others", "comparison"} & content.keys()

    differences = compare(diagnoses, resamples=5, progress=False)
    content = json.loads(write_diagnosis_file(diagnoses, differences, tmp_path).read_text())
    [other] = content["others"]
    assert other["name"] == "two" and other["AP"] == diagnoses[1].ap
    [difference] = content["comparison"]
    assert difference["AP_difference"] == pytest.approx(other["AP"] - content["AP"])
    assert difference["interval"][0] <= difference["interval"][1]
    assert 0 < len(difference["images"]) <= MAX_CHANGED_IMAGES
    assert difference["images"][0].keys() == {"id", "file_name", "before", "after"}
