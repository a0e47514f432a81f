"""Results files of strangers: what is refused, in one line that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.people import Split, read_split
from posenet.diagnosis.matching import Results, read_results
from posenet.errors import DataError
from tests.helpers.coco_results import perfect_results


@pytest.fixture
def split(drawn_file: Path) -> Split:
    return read_split(drawn_file)


def read(path: Path, split: Split) -> Results:
    index_of = {number: index for index, number in enumerate(sorted(image.id for image in split.images))}
    return read_results(path, index_of, split.categories, 17)


@pytest.fixture
def results(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    return perfect_results(drawn)[:4]


CHANGES = [
    *(({"image_id": value}, f"result 2 has image_id .?{value}") for value in (99999, 1.5, "10000001", None)),
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


def test_faulty_files_are_refused_in_one_line(split: Split, results: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    contents = [(json.dumps([results[0], results[1] | change, *results[2:]]), message) for change, message in CHANGES]
    for content, message in [*contents, *FILES.items()]:
        path.write_text(content)
        with pytest.raises(DataError, match=message) as caught:
            read(path, split)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(DataError, match="cannot read results"):
        read(tmp_path / "missing.json", split)


def test_whole_numbers_and_further_fields_are_accepted(
    split: Split, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    results[0] |= {"keypoints": [1, 2, 0] * 17, "score": -3, "bbox": "anything", "segmentation": None, "area": []}
    results[1] |= {"image_id": float(results[1]["image_id"]), "category_id": 1.0}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    found = read(path, split)
    ids = sorted(image.id for image in split.images)
    assert [ids[index] for index in found.image] == sorted(entry["image_id"] for entry in results)
    [lowest] = np.flatnonzero(found.scores == -3)
    assert np.array_equal(found.keypoints[lowest], [[1, 2, 0]] * 17)
    path.write_text("[]")
    assert read(path, split).keypoints.shape == (0, 17, 3)
