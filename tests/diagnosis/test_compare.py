"""Several results of the same annotations: what changed, and whether it is more than noise."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.compare import compare
from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.coco_results import InjectedErrors, coco_ap, people_of, perfect_results, plain_coco


def run(path: Path, results: list[dict[str, Any]], name: str = "results") -> Diagnosis:
    return diagnose(path, results, name=name, progress=False)


def test_better_results_are_called_better(drawn: dict[str, Any], drawn_file: Path) -> None:
    injected = InjectedErrors.start(drawn)
    injected.add_keypoint_errors("miss", 60, np.random.default_rng(0))
    worse = run(drawn_file, injected.results, "worse")
    better = run(drawn_file, perfect_results(drawn), "better")
    difference, same = compare([worse, better, worse], resamples=200, progress=False)
    assert (same.name, same.ap_difference, same.interval, same.significant) == ("worse", 0, (0, 0), False)
    assert (difference.baseline, difference.name) == ("worse", "better")
    assert difference.ap_difference == pytest.approx(1 - worse.ap)
    low, high = difference.interval
    assert 0 < low < difference.ap_difference < high and difference.significant
    [reverse] = compare([better, worse], resamples=200, progress=False)
    assert reverse.interval == pytest.approx((-high, -low)) and reverse.significant


def test_noise_is_not_significant(drawn: dict[str, Any], drawn_file: Path) -> None:
    """Two results with equally many errors of the same kind in different keypoints."""
    diagnoses = []
    for seed in (1, 2):
        injected = InjectedErrors.start(drawn)
        injected.add_keypoint_errors("miss", 60, np.random.default_rng(seed))
        diagnoses.append(run(drawn_file, injected.results))
    [[difference], [other]] = (compare(diagnoses, resamples=200, seed=seed, progress=False) for seed in (0, 1))
    assert difference.ap_difference != 0 and not difference.significant
    assert difference.interval != other.interval, "the seed decides the interval"


def test_the_interval_is_that_of_pycocotools_on_resampled_images(drawn: dict[str, Any], tmp_path: Path) -> None:
    """Every resample, evaluated as a data set in which images appear several times. The last image shows nobody."""
    drawn = drawn | {"images": [*drawn["images"], drawn["images"][0] | {"id": 99, "file_name": "099.jpg"}]}
    drawn_file = tmp_path / "people.json"
    drawn_file.write_text(json.dumps(drawn))
    rng = np.random.default_rng(3)
    files = []
    for seed in (4, 5):
        injected = InjectedErrors.start(drawn)
        injected.add_keypoint_errors("miss", 40, np.random.default_rng(seed))
        injected.add_background(20, rng, score=0.85)
        for result, score in zip(injected.results, rng.permutation(len(injected.results)).tolist()):
            result["score"] = score
        files.append(injected.results)
    [difference] = compare([run(drawn_file, file) for file in files], resamples=4, seed=7, progress=False)
    ids = sorted(image["id"] for image in drawn["images"])
    draws = np.random.default_rng(7)
    gains = []
    for _ in range(4):
        chosen = [ids[index] for index in draws.integers(len(ids), size=len(ids)).tolist()]
        first, second = (coco_ap(plain_coco(*resampled(drawn, file, chosen))) for file in files)
        gains.append(second - first)
    assert difference.interval == pytest.approx(np.percentile(gains, (2.5, 97.5)), abs=1e-9)


def resampled(
    document: dict[str, Any], results: list[dict[str, Any]], chosen: list[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A data set of the chosen images under new ids, and its results."""
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": document["categories"]}
    copied = []
    for number, image_id in enumerate(chosen, 1):
        content["images"].append({"id": number})
        for entry in document["annotations"]:
            if entry["image_id"] == image_id:
                new = {"image_id": number, "id": len(content["annotations"]) + 1}
                content["annotations"].append(copy.deepcopy(entry) | new)
        copied += [result | {"image_id": number} for result in results if result["image_id"] == image_id]
    return content, copied


def test_results_of_other_annotations_are_refused(drawn: dict[str, Any], drawn_file: Path, tmp_path: Path) -> None:
    """Also if the images have the same people, but with another label, or the same people have other sigmas."""
    with pytest.raises(ValueError, match="two diagnoses or more"):
        compare([run(drawn_file, [])])
    strict = dataclasses.replace(COCO, sigmas=tuple(sigma / 2 for sigma in COCO.sigmas))
    others = [diagnose(drawn_file, [], skeleton=strict, name="second", progress=False)]
    moved, fewer = copy.deepcopy(drawn), copy.deepcopy(drawn)
    people_of(moved)[0]["keypoints"][0] += 1
    last = fewer["images"].pop()["id"]
    fewer["annotations"] = [entry for entry in fewer["annotations"] if entry["image_id"] != last]
    for content in (moved, fewer):
        path = tmp_path / "other.json"
        path.write_text(json.dumps(content))
        others.append(run(path, [], "second"))
    for other in others:
        with pytest.raises(DataError, match="first and second were diagnosed with different annotations"):
            compare([run(drawn_file, [], "first"), other], progress=False)
