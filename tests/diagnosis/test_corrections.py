"""The AP before and after corrections is that of plain ``pycocotools`` on the corrected results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.reading import read_split
from posenet.diagnosis.average_precision import average_precision
from posenet.diagnosis.corrections import (
    LOCALISATION,
    MatchedResults,
    correct_results,
    evaluate_corrected,
    measure_corrections,
)
from posenet.diagnosis.matching import Found, Truth
from posenet.diagnosis.result import CORRECTIONS, OKS_THRESHOLDS, UNCORRECTED
from posenet.diagnosis.results_file import parse_results
from posenet.skeleton import COCO
from tests.helpers.coco_results import coco_ap, people_of, plain_coco, random_results

EXACT = 1e-9


class Case:
    """Random results, matched; and their images."""

    def __init__(self, document: dict[str, Any], path: Path) -> None:
        self.document = document
        self.results = random_results(document, np.random.default_rng(5))
        split = read_split(path)
        self.image_ids = np.array(sorted(image.id for image in split.images))
        file = parse_results(self.results, split, COCO, "results")
        truth = Truth.from_annotations(split.people, self.image_ids, 17)
        found = Found.from_arrays(np.searchsorted(self.image_ids, file.image_ids), file.keypoints, file.scores)
        self.matched = MatchedResults.build(found, truth, COCO)
        self.corrections = measure_corrections(self.matched)

    def corrected_file(self, corrections: Sequence[str]) -> list[dict[str, Any]]:
        """The corrected results as the content of a results file."""
        found, _, _ = correct_results(self.matched, corrections)
        return to_file(found, self.image_ids)


def to_file(found: Found, image_ids: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"image_id": int(image_ids[image]), "category_id": 1, "keypoints": keypoints.ravel().tolist(), "score": score}
        for image, keypoints, score in zip(found.image, found.keypoints, found.scores.tolist())
    ]


@pytest.fixture(scope="module")
def case(document: dict[str, Any], annotation_file: Path) -> Case:
    return Case(document, annotation_file)


def test_the_precision_is_that_of_pycocotools(case: Case) -> None:
    expected = plain_coco(case.document, case.results)
    assert (case.corrections.corrected[UNCORRECTED] == expected.eval["precision"][:, :, 0, 0, 0]).all()
    assert expected.stats[0] == pytest.approx(average_precision(case.corrections.corrected[UNCORRECTED]), abs=EXACT)


@pytest.mark.parametrize(
    ("stage", "corrections"),
    [(kind, LOCALISATION[: number + 1]) for number, kind in enumerate(LOCALISATION)]
    + [("score", (*LOCALISATION, "score"))],
)
def test_the_ap_after_several_corrections_is_that_of_pycocotools(
    case: Case, stage: str, corrections: Sequence[str]
) -> None:
    expected = plain_coco(case.document, case.corrected_file(corrections)).eval["precision"][:, :, 0, 0, 0]
    np.testing.assert_allclose(case.corrections.corrected[stage], expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", [*LOCALISATION, "score"])
def test_the_ap_after_one_correction_is_that_of_pycocotools(case: Case, kind: str) -> None:
    expected = plain_coco(case.document, case.corrected_file([kind])).eval["precision"][:, :, 0, 0, 0]
    np.testing.assert_allclose(case.corrections.alone[kind], expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("before", [(), (*LOCALISATION, "score")])
def test_background_and_missed_people_are_removed_at_each_threshold(case: Case, before: Sequence[str]) -> None:
    results = case.corrected_file(before)
    outcome = evaluate_corrected(case.matched, before)
    without_background = outcome.curves(without=["background"])
    without_missed = outcome.curves(without=["missed"])
    if before:
        assert (case.corrections.corrected["background"] == without_background).all()
    else:
        assert (case.corrections.alone["background"] == without_background).all()
        assert (case.corrections.alone["missed"] == without_missed).all()
    for level, threshold in enumerate(OKS_THRESHOLDS):
        matches = plain_coco(case.document, results, [threshold])
        found = {id for image in matches.evalImgs[: len(case.image_ids)] if image for id in matched_results(image)}
        reached = {id for image in matches.evalImgs[: len(case.image_ids)] if image for id in matched_people(image)}
        kept = [result for number, result in enumerate(results, 1) if number in found]
        assert outcome.background[level].sum() == len(results) - len(kept)
        ap = coco_ap(plain_coco(case.document, kept, [threshold]))
        assert without_background[level].mean() == pytest.approx(ap, abs=EXACT)
        missed = {person["id"] for person in people_of(case.document)} - reached
        assert outcome.missed[level].sum() == len(missed)
        ap = coco_ap(plain_coco(case.document, results, [threshold], people=lambda entry: entry["id"] not in missed))
        assert without_missed[level].mean() == pytest.approx(ap, abs=EXACT)


def matched_results(image: dict[str, Any]) -> list[int]:
    return [number for number, match in zip(image["dtIds"], image["dtMatches"][0]) if match]


def matched_people(image: dict[str, Any]) -> list[int]:
    return [number for number, match in zip(image["gtIds"], image["gtMatches"][0]) if match]


def test_nothing_remains_after_all_corrections(case: Case) -> None:
    assert list(case.corrections.corrected) == [UNCORRECTED, *CORRECTIONS]
    assert (case.corrections.corrected["missed"] == 1).all()


def test_no_correction_costs_ap(case: Case) -> None:
    """With random results, each correction gains something at every stage, or there is nothing to correct."""
    aps = [average_precision(curves) for curves in case.corrections.corrected.values()]
    assert np.diff(aps).min() > -1e-3 and aps[4] > aps[0] + 0.01 and aps[5] > aps[4] + 0.01
