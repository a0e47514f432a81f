"""Where corrected keypoints lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.reading import read_split
from posenet.diagnosis.corrections import LOCALISATION, MatchedResults, correct_results
from posenet.diagnosis.localisation import classify_keypoints, mirror_indices
from posenet.diagnosis.matching import Found, Truth, similarity
from posenet.diagnosis.result import KINDS
from posenet.skeleton import COCO
from tests.helpers.coco_results import random_results

SIMILARITY = {"jitter": 0.85, "miss": 0.5}


@pytest.fixture
def matched(document: dict[str, Any], annotation_file: Path) -> MatchedResults:
    results = random_results(document, np.random.default_rng(2))
    image_ids = np.array(sorted(image["id"] for image in document["images"]))
    truth = Truth.from_annotations(read_split(annotation_file).people, image_ids, 17)
    found = Found.from_arrays(
        np.searchsorted(image_ids, [result["image_id"] for result in results]),
        np.array([result["keypoints"] for result in results], float).reshape(-1, 17, 3),
        np.array([result["score"] for result in results], float),
    )
    return MatchedResults.build(found, truth, COCO)


def similarity_to_right(matched: MatchedResults, found: Found) -> np.ndarray:
    """(N, F) similarity of every keypoint to the matched person's."""
    truth = matched.truth
    gaps = found.keypoints[..., :2] - truth.keypoints[matched.person, :, :2]
    return similarity(gaps, truth.areas[matched.person, None], np.array(COCO.sigmas))


@pytest.mark.parametrize("kind", LOCALISATION)
def test_corrected_keypoints_have_the_similarity_of_their_kind(kind: str, matched: MatchedResults) -> None:
    is_kind = matched.kinds == KINDS.index(kind)
    corrected, _, _ = correct_results(matched, [kind])
    after = similarity_to_right(matched, corrected)[is_kind]
    expected = np.full(len(after), SIMILARITY[kind]) if kind in SIMILARITY else matched.similarity[is_kind]
    assert len(after) > 3
    np.testing.assert_allclose(after, expected, rtol=1e-7)
    assert (after >= np.minimum(expected, 1 - 1e-12)).all()  # never a little below a threshold
    assert np.array_equal(corrected.keypoints[~is_kind], matched.found.keypoints[~is_kind])
    assert np.array_equal(corrected.scores, matched.found.scores)


def test_corrected_keypoints_lie_towards_the_found_ones(matched: MatchedResults) -> None:
    is_miss = matched.kinds == KINDS.index("miss")
    corrected, _, _ = correct_results(matched, ["miss"])
    true_xy = matched.truth.keypoints[matched.person, :, :2]
    before = (matched.found.keypoints[..., :2] - true_xy)[is_miss]
    after = (corrected.keypoints[..., :2] - true_xy)[is_miss]
    cosine = (before * after).sum(axis=1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
    np.testing.assert_allclose(cosine, 1, atol=1e-6)


def test_correcting_jitter_and_misses_leaves_at_most_jitter(matched: MatchedResults) -> None:
    corrected, _, _ = correct_results(matched, LOCALISATION)
    kinds, _ = classify_keypoints(corrected, matched.truth, matched.pairs, matched.person, COCO)
    assert not (kinds == KINDS.index("miss")).any()
    was_jitter = matched.kinds == KINDS.index("jitter")
    assert (similarity_to_right(matched, corrected)[was_jitter] >= 0.85).all()


def test_left_and_right_are_mirrored() -> None:
    names = COCO.file_names
    for name, mirrored in zip(names, (names[k] for k in mirror_indices(COCO))):
        assert mirrored == (name.replace("left", "right") if "left" in name else name.replace("right", "left"))
