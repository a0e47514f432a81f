"""Results files of strangers: what is refused, in one line that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.matching import Results, read_results
from posenet.errors import DataError

IDS = {10: 0, 20: 1, 30: 2}
"""The index of every image by its id."""


def read(path: Path, content: str) -> Results:
    path.write_text(content)
    return read_results(path, IDS, {1}, 17)


@pytest.fixture
def results() -> list[dict[str, Any]]:
    keypoints = [float(value) for value in range(51)]
    return [{"image_id": number, "category_id": 1, "keypoints": keypoints, "score": 0.5} for number in (30, 10, 20)]


CHANGES = [
    *(({"image_id": value}, f"result 2 has image_id .?{value}") for value in (99999, 1.5, "20", None)),
    *(({"category_id": value}, f"category_id .?{value}") for value in (18, None)),
    ({"keypoints": [1.0] * 50}, "result 2 has 50 .* 51"),
    *(
        ({"keypoints": keypoints}, "result 2 has keypoints")
        for keypoints in (None, [[1, 2, 3]] * 51, ["1"] * 51, [True] * 51, [float("nan")] * 51, [-(10**400)] * 51)
    ),
    *(({"score": score}, "score") for score in (None, "0.9", True, float("nan"), [0.5])),
]
FILES = {
    "": "cannot read results .*; give a COCO results file",
    "{": "cannot read results",
    "[" * 100000: "cannot read results",
    "[1, 2]": "is not a list of results",
    '{"annotations": [], "images": []}': "is not a list of results",
    "null": "is not a list of results",
}


def test_faulty_files_are_refused_in_one_line(results: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    contents = [(json.dumps([results[0], results[1] | change, results[2]]), message) for change, message in CHANGES]
    for content, message in [*contents, *FILES.items()]:
        with pytest.raises(DataError, match=message) as caught:
            read(path, content)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(DataError, match="cannot read results"):
        read_results(tmp_path / "missing.json", IDS, {1}, 17)


def test_whole_numbers_and_further_fields_are_accepted(results: list[dict[str, Any]], tmp_path: Path) -> None:
    results[0] |= {"keypoints": [1, 2, 0] * 17, "score": -3, "bbox": "anything", "segmentation": None, "area": []}
    results[1] |= {"image_id": 10.0, "category_id": 1.0}
    found = read(tmp_path / "results.json", json.dumps(results))
    assert found.image.tolist() == [0, 1, 2] and found.scores.tolist() == [0.5, 0.5, -3]
    assert np.array_equal(found.keypoints[2], [[1, 2, 0]] * 17)
    assert read(tmp_path / "results.json", "[]").keypoints.shape == (0, 17, 3)
