"""Results files of strangers: what is refused, in one line that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.people import Split, read_split
from posenet.diagnosis.results_file import read_results
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.coco_results import perfect_results


@pytest.fixture
def split(drawn_file: Path) -> Split:
    return read_split(drawn_file)


@pytest.fixture
def results(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    return perfect_results(drawn)[:4]


CHANGES = {
    "unknown image": ({"image_id": 99999}, "1 result of images that .* for example image 99999"),
    "image id as text": ({"image_id": "10000001"}, "2 has image_id '10000001', .*; .* posenet evaluate --output"),
    "image id missing": ({"image_id": None}, "result 2 has image_id None"),
    "other category": ({"category_id": 18}, "result 2 has category_id 18, but the annotated people have 1"),
    "category missing": ({"category_id": None}, "result 2 has category_id None"),
    "keypoints missing": ({"keypoints": None}, "result 2 has no list of keypoints"),
    "too few keypoints": ({"keypoints": [1.0] * 50}, "result 2 has 50 numbers as keypoints, but .* needs 51"),
    "another skeleton": ({"keypoints": [1.0] * 63}, "63 numbers .*skeleton=FILE"),
    "nested keypoints": ({"keypoints": [[1, 2, 3]] * 51}, "result 2 has keypoints that are not all numbers"),
    "text in keypoints": ({"keypoints": ["1"] * 51}, "result 2 has keypoints that are not all numbers"),
    "true in keypoints": ({"keypoints": [True] * 51}, "result 2 has keypoints that are not all numbers"),
    "NaN in keypoints": ({"keypoints": [float("nan")] * 51}, "a keypoint of result 2 is not a finite number"),
    "infinite keypoints": ({"keypoints": [float("inf")] * 51}, "a keypoint of result 2 is not a finite number"),
    "huge keypoints": ({"keypoints": [10**400] * 51}, "a keypoint .*is not a finite number"),
    "score missing": ({"score": None}, "result 2 has score None, which is not a number"),
    "score as text": ({"score": "0.9"}, "result 2 has score '0.9', which is not a number"),
    "score is true": ({"score": True}, "result 2 has score True, which is not a number"),
    "score is NaN": ({"score": float("nan")}, "a score of result 2 is not a finite number"),
    "score is a list": ({"score": [0.5]}, r"result 2 has score \[0.5\], which is not a number"),
}  # fmt: skip


def test_a_faulty_result_is_refused_in_one_line(split: Split, results: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for change, message in CHANGES.values():
        path.write_text(json.dumps([results[0], results[1] | change, *results[2:]]))
        with pytest.raises(DataError, match=message) as caught:
            read_results(path, split, COCO)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value) and len(str(caught.value)) < 400


FILES = {
    "": "is empty; give a COCO results file",
    " \n": "is empty",
    "{": "is not valid JSON",
    "[" * 100000: "is not valid JSON",
    "{}": "is not a list of results",
    "[1, 2]": "is not a list of results",
    '{"annotations": [], "images": []}': "the truth",
    "null": "is not a list of results",
}


def test_a_file_that_is_no_results_file_is_refused_in_one_line(split: Split, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for content, message in FILES.items():
        path.write_text(content)
        with pytest.raises(DataError, match=message) as caught:
            read_results(path, split, COCO)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(DataError, match="cannot read results"):
        read_results(tmp_path / "missing.json", split, COCO)


def test_whole_numbers_and_further_fields_are_accepted(
    split: Split, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    results[0] |= {"keypoints": [1, 2, 0] * 17, "score": -3, "bbox": "anything", "segmentation": None, "area": []}
    results[1] |= {"image_id": float(results[1]["image_id"]), "category_id": 1.0}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    read = read_results(path, split, COCO)
    ids = sorted(image.id for image in split.images)
    assert [ids[index] for index in read.image] == sorted(entry["image_id"] for entry in results)
    [lowest] = np.flatnonzero(read.scores == -3)
    assert np.array_equal(read.keypoints[lowest], [[1, 2, 0]] * 17)
    path.write_text("[]")
    assert read_results(path, split, COCO).keypoints.shape == (0, 17, 3)
