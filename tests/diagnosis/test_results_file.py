"""Results files of strangers: what is refused, in one line that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.reading import Split, read_split
from posenet.diagnosis.results_file import read_results
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.coco_results import perfect_results


@pytest.fixture
def split(drawn: dict[str, Any], tmp_path: Path) -> Split:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    return read_split(path)


@pytest.fixture
def results(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    return perfect_results(drawn)[:4]


CHANGES = {
    "unknown image": ({"image_id": 99999}, "1 result of images that .* for example image 99999"),
    "image id as text": ({"image_id": "10000001"}, "result 2 has image_id '10000001', which is not a whole number"),
    "image id missing": ({"image_id": None}, "result 2 has image_id None"),
    "other category": ({"category_id": 18}, "result 2 has category_id 18, but the annotated people have 1"),
    "category missing": ({"category_id": None}, "result 2 has category_id None"),
    "keypoints missing": ({"keypoints": None}, "result 2 has no list of keypoints"),
    "too few keypoints": ({"keypoints": [1.0] * 50}, "result 2 has 50 numbers as keypoints, but .* needs 51"),
    "another skeleton": ({"keypoints": [1.0] * 63}, "63 numbers .*--skeleton"),
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


@pytest.mark.parametrize("name", CHANGES)
def test_a_faulty_result_is_refused_in_one_line(
    name: str, split: Split, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    change, message = CHANGES[name]
    results[1] |= change
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
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


@pytest.mark.parametrize("content", FILES, ids=lambda content: repr(content[:20]))
def test_a_file_that_is_no_results_file_is_refused_in_one_line(content: str, split: Split, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(DataError, match=FILES[content]) as caught:
        read_results(path, split, COCO)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_missing_file_is_refused(split: Split, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read results"):
        read_results(tmp_path / "missing.json", split, COCO)


def test_whole_numbers_further_fields_and_any_scores_are_accepted(
    split: Split, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    results[0] |= {"keypoints": [1, 2, 0] * 17, "score": -3, "bbox": "anything", "segmentation": None, "area": []}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    file = read_results(path, split, COCO)
    assert file.scores[0] == -3 and np.array_equal(file.keypoints[0], [[1, 2, 0]] * 17)
    assert set(file.to_coco(1)[0]) == {"image_id", "category_id", "keypoints", "score"}


def test_whole_numbers_may_be_written_as_floats(split: Split, results: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(
        json.dumps([entry | {"image_id": float(entry["image_id"]), "category_id": 1.0} for entry in results])
    )
    file = read_results(path, split, COCO)
    assert file.image_ids.dtype == np.int64
    assert file.image_ids.tolist() == [entry["image_id"] for entry in results]


def test_an_empty_list_is_accepted(split: Split, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("[]")
    file = read_results(path, split, COCO)
    assert len(file.scores) == 0 and file.keypoints.shape == (0, 17, 3) and file.to_coco(1) == []
