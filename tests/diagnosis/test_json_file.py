"""The fields of ``diagnosis.json`` on which other programs rely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.compare import compare
from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.json_file import MAX_CHANGED_IMAGES, write_diagnosis_file
from posenet.diagnosis.result import CORRECTIONS, KINDS, Diagnosis
from posenet.skeleton import COCO
from tests.helpers.coco_results import random_results


@pytest.fixture
def diagnoses(document: dict[str, Any], annotation_file: Path) -> list[Diagnosis]:
    rng = np.random.default_rng(0)
    return [
        diagnose(annotation_file, random_results(document, rng), name=name, progress=False) for name in ("one", "two")
    ]


def test_one_results_file(diagnoses: list[Diagnosis], tmp_path: Path) -> None:
    diagnosis = diagnoses[0]
    path = write_diagnosis_file([diagnosis], None, tmp_path)
    assert path == tmp_path / "diagnosis.json"
    content = json.loads(path.read_text())
    assert content["AP"] == diagnosis.ap == content["metrics"]["AP"]
    assert content["counts"] == diagnosis.counts and list(content["counts"]) == list(KINDS)
    assert list(content["keypoints"]) == list(COCO.file_names)
    assert content["keypoints"] == diagnosis.keypoints
    assert list(content["corrected"]) == list(content["alone"]) == list(CORRECTIONS)
    assert content["corrected"] == diagnosis.corrected and content["alone"] == diagnosis.alone
    assert content["background"] == diagnosis.background == content["background_by_threshold"][0]
    assert content["missed"] == diagnosis.missed == content["missed_by_threshold"][0]
    assert len(content["AP_by_threshold"]) == len(content["oks_thresholds"]) == 10
    assert np.mean(content["corrected_by_threshold"]["jitter"]) == pytest.approx(content["corrected"]["jitter"])
    assert content["sensitivity"]["size"][0].keys() == {"name", "people", "AP", "counts", "missed"}
    assert not {"others", "comparison", "perfect_grouping"} & content.keys()


def test_several_results_files(diagnoses: list[Diagnosis], tmp_path: Path) -> None:
    comparison = compare(diagnoses, resamples=5, progress=False)
    content = json.loads(write_diagnosis_file(diagnoses, comparison, tmp_path).read_text())
    assert content["name"] == "one"
    [other] = content["others"]
    assert other["name"] == "two" and other["AP"] == diagnoses[1].ap
    [difference] = content["comparison"]
    assert difference["AP_difference"] == pytest.approx(other["AP"] - content["AP"])
    assert difference["interval"][0] <= difference["interval"][1]
    assert difference["changes"][0].keys() == {"group", "name", "before", "after", "improved"}
    assert len(difference["images"]) <= MAX_CHANGED_IMAGES
    assert difference["images"][0].keys() == {"id", "file_name", "before", "after"}
