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
from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.result import Diagnosis
from tests.helpers.coco_results import InjectedErrors, coco_ap, people_of, perfect_results, plain_coco, random_results


def run(path: Path, results: list[dict[str, Any]], name: str = "results") -> Diagnosis:
    return diagnose(path, results, name=name, progress=False)


def test_the_same_results_do_not_differ(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, random_results(document, np.random.default_rng(0)))
    [difference] = compare([diagnosis, diagnosis], resamples=50, progress=False).differences
    assert difference.ap_difference == 0 and difference.interval == (0, 0) and difference.share_better == 0.5
    assert not difference.significant and difference.changes == [] and difference.images == []


def test_better_results_are_called_better(document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors("miss", 60, np.random.default_rng(0))
    worse = run(annotation_file, injected.results, "worse")
    better = run(annotation_file, perfect_results(document), "better")
    comparison = compare([worse, better], resamples=200, progress=False)
    assert comparison.names == ["worse", "better"]
    [difference] = comparison.differences
    assert (difference.baseline, difference.name, difference.resamples) == ("worse", "better", 200)
    assert difference.ap_difference == pytest.approx(1 - worse.ap)
    low, high = difference.interval
    assert 0 < low < difference.ap_difference < high and difference.significant and difference.share_better == 1
    assert difference.changes and all(change.improved for change in difference.changes)
    changes = {(change.group, change.name): (change.before, change.after) for change in difference.changes}
    assert changes["count", "miss"] == (60, 0) and changes["metric", "AP"] == (worse.ap, better.ap)
    assert changes["cost", "miss"] == (worse.costs["miss"], 0)
    touched = {people_of(document)[row]["image_id"] for row, keypoints in injected.touched.items() if keypoints}
    assert {image.id for image in difference.images} == touched
    assert min(image.change for image in difference.images) > 0
    sizes = [abs(image.change) for image in difference.images]
    assert sizes == sorted(sizes, reverse=True)

    [reverse] = compare([better, worse], resamples=200, progress=False).differences
    assert reverse.interval == pytest.approx((-high, -low)) and reverse.share_better == 0
    assert not any(change.improved for change in reverse.changes)


def test_noise_is_not_significant(document: dict[str, Any], annotation_file: Path) -> None:
    """Two results with equally many errors of the same kind in different keypoints."""
    diagnoses = []
    for seed in (1, 2):
        injected = InjectedErrors.start(document)
        injected.add_keypoint_errors("miss", 60, np.random.default_rng(seed))
        diagnoses.append(run(annotation_file, injected.results))
    [difference] = compare(diagnoses, resamples=200, progress=False).differences
    assert difference.ap_difference != 0 and not difference.significant
    assert 0.01 < difference.share_better < 0.99


def test_the_interval_is_that_of_pycocotools_on_resampled_images(
    drawn: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every resample, evaluated as a data set in which images appear several times."""
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    rng = np.random.default_rng(3)
    files = []
    for seed in (4, 5):
        injected = InjectedErrors.start(drawn)
        injected.add_keypoint_errors("miss", 40, np.random.default_rng(seed))
        injected.add_background(20, rng, score=0.85)
        for result, score in zip(injected.results, rng.permutation(len(injected.results)).tolist()):
            result["score"] = score
        files.append(injected.results)
    [difference] = compare([run(path, file) for file in files], resamples=10, seed=7, progress=False).differences
    ids = sorted(image["id"] for image in drawn["images"])
    draws = np.random.default_rng(7)
    gains = []
    for _ in range(10):
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


def test_the_seed_decides_the_interval(document: dict[str, Any], annotation_file: Path) -> None:
    rng = np.random.default_rng(0)
    diagnoses = [run(annotation_file, random_results(document, rng)) for _ in range(2)]
    intervals = [
        compare(diagnoses, resamples=20, seed=seed, progress=False).differences[0].interval for seed in (0, 0, 1)
    ]
    assert intervals[0] == intervals[1] != intervals[2]


def test_several_results_are_each_compared_with_the_first(document: dict[str, Any], annotation_file: Path) -> None:
    rng = np.random.default_rng(0)
    names = ["a", "b", "c"]
    diagnoses = [run(annotation_file, random_results(document, rng), name) for name in names]
    differences = compare(diagnoses, resamples=5, progress=False).differences
    assert [(difference.baseline, difference.name) for difference in differences] == [("a", "b"), ("a", "c")]


def test_results_of_other_annotations_are_refused(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, perfect_results(document))
    other = dataclasses.replace(diagnosis, images=diagnosis.images[:-1])
    with pytest.raises(ValueError, match="different annotations"):
        compare([diagnosis, other])
    with pytest.raises(ValueError, match="two diagnoses or more"):
        compare([diagnosis])
    with pytest.raises(ValueError, match="by hand"):
        compare([diagnosis, dataclasses.replace(diagnosis, outcome=None)])
