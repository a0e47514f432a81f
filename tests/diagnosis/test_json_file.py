"""The fields of ``diagnosis.json`` on which other programs rely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.error_kinds import CORRECTIONS, KEYPOINT_KINDS
from posenet.diagnosis.json_file import write_diagnosis_file
from posenet.skeleton import COCO
from tests.helpers.coco_results import people_of, random_results


def test_the_file_has_the_numbers_of_a_diagnosis(
    document: dict[str, Any], annotation_file: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    diagnosis = diagnose(annotation_file, random_results(document, rng), name="one", progress=False)
    content = json.loads(write_diagnosis_file(diagnosis, tmp_path, {"Flip": "yes"}).read_text())
    assert content["name"] == "one" and content["AP"] == diagnosis.ap and content["metrics"] == diagnosis.metrics
    assert [content["images"], content["people"]] == [len(document["images"]), len(people_of(document))]
    assert content["results"] == diagnosis.num_results
    assert content["counts"] == diagnosis.counts and content["counts"].keys() == set(KEYPOINT_KINDS)
    assert list(content["keypoints"]) == list(COCO.file_names) and content["keypoints"] == diagnosis.keypoints
    assert list(content["corrected"]) == list(content["alone"]) == list(CORRECTIONS)
    assert content["corrected"] == diagnosis.corrected and content["alone"] == diagnosis.alone
    assert content["background"] == diagnosis.background == content["background_by_threshold"][0]
    assert content["missed"] == diagnosis.missed == content["missed_by_threshold"][0]
    assert content["oks_thresholds"] == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert np.mean(content["AP_by_threshold"]) == pytest.approx(content["AP"])
    for kind in CORRECTIONS:
        assert np.mean(content["corrected_by_threshold"][kind]) == pytest.approx(content["corrected"][kind])
        assert len(content["corrected_by_threshold"][kind]) == 10
    at_50 = content["missed_at_50"]
    assert content["corrected"]["background"] < at_50["corrected"] < content["corrected"]["missed"] == 1
    assert content["AP"] < at_50["alone"] < content["alone"]["missed"]
    assert content["sizes"] == [part._asdict() for part in diagnosis.sizes]
    assert content["provenance"] == {"Flip": "yes"}
