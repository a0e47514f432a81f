"""Annotations for diagnoses: made up ones, and those of images of COCO where the environment names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import Diagnosis, diagnose
from tests.helpers.coco_results import people_document, random_results

NUM_IMAGES = 50
"""Images of COCO. pycocotools, with which the results are compared, takes most of the time."""


@pytest.fixture(scope="session")
def drawn() -> dict[str, Any]:
    return people_document(40)


@pytest.fixture(scope="session", params=["drawn", "coco"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A COCO data set of people who are made up, or of people of COCO."""
    if request.param == "drawn":
        content: dict[str, Any] = request.getfixturevalue("drawn")
        return content
    sample: Path = request.getfixturevalue("coco_sample")
    content = json.loads((sample / "annotations" / "person_keypoints_val2017_oracle150.json").read_text())
    content["images"] = content["images"][:NUM_IMAGES]
    ids = {image["id"] for image in content["images"]}
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in ids]
    return content


@pytest.fixture(scope="session")
def annotation_file(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("annotations") / "people.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def drawn_file(drawn: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    return path


@pytest.fixture(scope="session")
def results(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Random results for ``document``."""
    return random_results(document, np.random.default_rng(5))


@pytest.fixture(scope="session")
def diagnosis(results: list[dict[str, Any]], annotation_file: Path) -> Diagnosis:
    return diagnose(annotation_file, results, progress=False)
