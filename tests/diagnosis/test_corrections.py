"""The precision before and after corrections is that of plain ``pycocotools`` on the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import MISSED_AT_50, Diagnosis
from posenet.diagnosis.keypoint_errors import CORRECTIONS, KEYPOINT_KINDS, LOCALISATION
from posenet.diagnosis.matching import Results
from posenet.skeleton import COCO
from posenet.skeleton.oks import keypoint_similarity
from tests.helpers.coco_results import coco_ap, people_of, plain_coco

EXACT = 1e-9
MOVED_TO = {"jitter": 0.85, "miss": 0.5}
"""Similarity of corrected keypoints; inversions and swaps keep theirs."""


def to_file(diagnosis: Diagnosis, results: Results) -> list[dict[str, Any]]:
    """Results as the content of a results file."""
    return [
        {"image_id": diagnosis.images[image].id, "category_id": 1, "keypoints": keypoints.ravel().tolist()}
        | {"score": score}
        for image, keypoints, score in zip(results.image, results.keypoints, results.scores.tolist())
    ]


@pytest.mark.parametrize("stage", [*LOCALISATION, "score"])
def test_the_corrected_precision_is_that_of_pycocotools(
    stage: str, diagnosis: Diagnosis, document: dict[str, Any]
) -> None:
    """After each correction and all before it, and after it alone."""
    in_turn = CORRECTIONS[: CORRECTIONS.index(stage) + 1]
    for corrections, precision in ((in_turn, diagnosis.precision), ([stage], diagnosis.alone_precision)):
        content = to_file(diagnosis, diagnosis.matched.correct(corrections).results)
        expected = plain_coco(document, content).eval["precision"][:, :, 0, 0, 0]
        np.testing.assert_allclose(precision[stage], expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("corrections", [(), CORRECTIONS[:5]])
def test_background_and_missed_people_are_removed_at_each_threshold(
    corrections: tuple[str, ...], diagnosis: Diagnosis, document: dict[str, Any]
) -> None:
    matched = diagnosis.matched.correct(corrections)
    content = to_file(diagnosis, matched.results)
    outcome = matched.evaluate()
    people = {person["id"] for person in people_of(document)}
    missed_at_50: set[int] = set()
    for level, threshold in ((0, 0.5), (8, 0.9)):
        evaluated = plain_coco(document, content, [threshold]).evalImgs[: len(diagnosis.images)]
        images = [image for image in evaluated if image]
        found = {id for image in images for id, match in zip(image["dtIds"], image["dtMatches"][0]) if match}
        missed = people - {id for image in images for id, match in zip(image["gtIds"], image["gtMatches"][0]) if match}
        missed_at_50 = missed_at_50 or missed
        kept = [result for number, result in enumerate(content, 1) if number in found]
        assert outcome.background[level].sum() == len(content) - len(kept)
        assert outcome.missed[level].sum() == len(missed)
        precision = diagnosis.precision if corrections else diagnosis.alone_precision
        remaining = kept if corrections else content
        for stage, results, removed in (
            ("background", kept, set()),
            ("missed", remaining, missed),
            (MISSED_AT_50, remaining, missed & missed_at_50),
        ):
            plain = plain_coco(document, results, [threshold], people=lambda entry: entry["id"] not in removed)
            assert precision[stage][level].mean() == pytest.approx(coco_ap(plain), abs=EXACT)
    assert (diagnosis.precision["missed"] == 1).all()


@pytest.mark.parametrize("kind", LOCALISATION)
def test_corrected_keypoints_have_the_similarity_of_their_kind(kind: str, diagnosis: Diagnosis) -> None:
    before = diagnosis.matched
    after = before.correct([kind])
    is_kind = before.kinds == KEYPOINT_KINDS.index(kind)
    gaps = [one.results.keypoints[..., :2] - before.truth.keypoints[before.person, :, :2] for one in (before, after)]
    areas = before.truth.areas[before.person, None]
    similarity = keypoint_similarity((gaps[1] ** 2).sum(axis=2), areas, np.array(COCO.sigmas))[is_kind]
    expected = np.full(len(similarity), MOVED_TO[kind]) if kind in MOVED_TO else before.similarity[is_kind]
    assert len(similarity) > 3
    np.testing.assert_allclose(similarity, expected, rtol=1e-7)
    assert (similarity >= np.minimum(expected, 1 - 1e-12)).all()  # never a little below a threshold
    old, new = gaps[0][is_kind], gaps[1][is_kind]
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    np.testing.assert_allclose((old * new).sum(axis=1), lengths, atol=1e-6 * lengths.max())  # the same direction
    assert np.array_equal(after.results.keypoints[~is_kind], before.results.keypoints[~is_kind])
    assert np.array_equal(after.results.scores, before.results.scores)
