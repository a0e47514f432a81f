"""Matches are those of plain ``pycocotools`` on the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.matching import match
from tests.helpers.coco_results import plain_coco


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.75])
def test_matches_are_those_of_pycocotools(
    threshold: float, diagnosis: Diagnosis, document: dict[str, Any], results: list[dict[str, Any]]
) -> None:
    matched = diagnosis.matched
    truth = matched.truth
    assert len(matched.results) < len(results) and not truth.people.all()
    [matches] = match(matched.pairs, matched.oks, matched.results, truth, truth.people, [threshold])
    plain = plain_coco(document, results, [threshold])
    ids = {
        image.id: [e["id"] for e in document["annotations"] if e["image_id"] == image.id] for image in diagnosis.images
    }
    for index, image in enumerate(diagnosis.images):
        rows = np.flatnonzero(matched.results.image == index)
        first = np.searchsorted(truth.image, index)
        evaluated = plain.evalImgs[index]
        if evaluated is not None:
            assert matched.results.scores[rows].tolist() == evaluated["dtScores"]
            ours = [ids[image.id][row - first] if row >= 0 else 0 for row in matches[rows].tolist()]
            assert ours == evaluated["dtMatches"][0].tolist()
