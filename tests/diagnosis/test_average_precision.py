"""Precision of images that count several times: that of a data set in which they appear several times."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.average_precision import PrecisionCurves, average_precision
from tests.helpers.coco_results import plain_coco, random_results


def test_an_image_that_counts_thrice_is_an_image_that_appears_thrice(document: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    results = random_results(document, rng)
    for result, score in zip(results, rng.permutation(len(results)).tolist()):
        result["score"] = score  # different scores: the order of equal ones in copied images is arbitrary
    times = rng.integers(0, 4, len(document["images"]))
    once = plain_coco(document, results)
    images = once.evalImgs[: len(times)]
    ids = sorted(image["id"] for image in document["images"])
    weights = np.concatenate([np.full(len(image["dtIds"]), times[i]) for i, image in enumerate(images) if image])
    correct = np.concatenate([(image["dtMatches"] > 0) & ~image["dtIgnore"] for image in images if image], axis=1)
    counted = np.concatenate([~image["dtIgnore"] for image in images if image], axis=1)
    scores = np.concatenate([image["dtScores"] for image in images if image])
    people = sum(times[i] * int((image["gtIgnore"] == 0).sum()) for i, image in enumerate(images) if image)
    curves = PrecisionCurves(scores, correct, counted).compute(np.full(10, people), weights.astype(float))

    several, several_results = copies(document, results, dict(zip(ids, times.tolist())))
    expected = plain_coco(several, several_results).eval["precision"][:, :, 0, 0, 0]
    np.testing.assert_allclose(curves, expected, rtol=0, atol=1e-12)


def copies(
    document: dict[str, Any], results: list[dict[str, Any]], times: dict[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A data set with every image as often as ``times`` says, and its results."""
    images = []
    annotations = []
    copied = []
    for number in range(max(times.values())):
        shift = number * 10**9
        chosen = {image_id for image_id, count in times.items() if count > number}
        for entries, target in (
            (document["images"], images),
            (document["annotations"], annotations),
            (results, copied),
        ):
            for entry in entries:
                if entry.get("image_id", entry.get("id")) in chosen:
                    entry = copy.deepcopy(entry)
                    if "image_id" in entry:
                        entry["image_id"] += shift
                    if "id" in entry:
                        entry["id"] += shift
                    target.append(entry)
    return {"images": images, "annotations": annotations, "categories": document["categories"]}, copied


def test_thresholds_without_people_have_no_precision() -> None:
    curves = PrecisionCurves(np.array([0.5]), np.array([[False], [True]]), np.array([[True], [True]]))
    precision = curves.compute(np.array([0, 1]))
    assert (precision[0] == -1).all() and precision[1] == pytest.approx(1)
    assert average_precision(precision) == pytest.approx(1)
    assert average_precision(precision[:1]) == -1
