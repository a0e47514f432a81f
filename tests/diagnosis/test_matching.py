"""OKS and matches are those of ``pycocotools``, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.matching import MAX_RESULTS, Found, Pairs, Truth, compute_oks, match
from posenet.skeleton import COCO
from tests.helpers.coco_results import plain_coco, random_results


def arrays(document: dict[str, Any], results: list[dict[str, Any]]) -> tuple[Found, Truth, np.ndarray]:
    image_ids = np.array(sorted(image["id"] for image in document["images"]))
    found = Found.from_arrays(
        np.searchsorted(image_ids, [result["image_id"] for result in results]),
        np.array([result["keypoints"] for result in results], float).reshape(-1, 17, 3),
        np.array([result["score"] for result in results], float),
    )
    return found, Truth.from_annotations(document["annotations"], image_ids, 17), image_ids


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.75])
def test_oks_and_matches_are_those_of_pycocotools(threshold: float, document: dict[str, Any]) -> None:
    results = random_results(document, np.random.default_rng(0))
    found, truth, image_ids = arrays(document, results)
    pairs = Pairs.build(found, truth)
    oks = compute_oks(found, truth, pairs, np.array(COCO.sigmas))
    [matches] = match(pairs, oks, truth.ignored, truth.crowd, [threshold], len(found))
    plain = plain_coco(document, results, [threshold], COCO.sigmas)
    assert truth.ignored.any() and len(found) < len(results)
    for index, image_id in enumerate(image_ids.tolist()):
        rows = np.flatnonzero(found.image == index)
        people = np.flatnonzero(truth.image == index)
        expected = np.array(plain.ious[image_id, 1]).reshape(-1, len(people)) if len(people) else np.zeros((0, 0))
        own = oks[np.isin(pairs.result, rows)].reshape(-1, len(people)) if len(people) else np.zeros((0, 0))
        assert np.array_equal(own, expected[: len(own)])
        image = plain.evalImgs[index]
        if image is not None:
            assert found.scores[rows].tolist() == image["dtScores"]
            in_image = [entry["id"] for entry in document["annotations"] if entry["image_id"] == image_id]
            ours = [in_image[match - people[0]] if match >= 0 else 0 for match in matches[rows].tolist()]
            assert ours == image["dtMatches"][0].tolist()


def test_results_beyond_the_best_of_an_image_are_dropped() -> None:
    image = np.repeat([1, 0], 30)
    scores = np.arange(60.0)
    found = Found.from_arrays(image, np.zeros((60, 17, 3)), scores)
    assert found.image.tolist() == [0] * MAX_RESULTS + [1] * MAX_RESULTS
    assert found.scores.tolist() == [*range(59, 39, -1), *range(29, 9, -1)]


def test_equal_scores_keep_their_order() -> None:
    keypoints = np.arange(5 * 51.0).reshape(5, 17, 3)
    found = Found.from_arrays(np.zeros(5, int), keypoints, np.array([1.0, 2, 1, 2, 1]))
    assert found.keypoints[:, 0, 0].tolist() == [51, 153, 0, 102, 204]


def test_nobody_annotated_and_nobody_found() -> None:
    document = {"images": [{"id": 3}], "annotations": []}
    found, truth, _ = arrays(document, [])
    pairs = Pairs.build(found, truth)
    assert len(pairs) == 0 and len(compute_oks(found, truth, pairs, np.array(COCO.sigmas))) == 0
    assert match(pairs, np.zeros(0), truth.ignored, truth.crowd, [0.5], 0).shape == (1, 0)


def test_annotations_of_images_that_are_not_listed_are_left_out(drawn: dict[str, Any]) -> None:
    ids = np.array(sorted(image["id"] for image in drawn["images"]))
    truth = Truth.from_annotations(drawn["annotations"], ids[::2], 17)
    expected = [entry for entry in drawn["annotations"] if entry["image_id"] in ids[::2]]
    assert len(truth) == len(expected) and truth.num_images == len(ids[::2])
