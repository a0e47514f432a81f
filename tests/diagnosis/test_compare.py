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
from tests.helpers.coco_results import InjectedErrors, coco_ap, people_of, perfect_results, plain_coco, random_results


def run(path: Path, results: list[dict[str, Any]], name: str = "results") -> Diagnosis:
    return diagnose(path, results, name=name, progress=False)


def test_the_same_results_do_not_differ(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, random_results(document, np.random.default_rng(0)))
    [difference] = compare([diagnosis, diagnosis], resamples=50, progress=False)
    assert difference.ap_difference == 0 and difference.interval == (0, 0) and difference.share_better == 0.5
    assert not difference.significant and difference.images == []


def test_better_results_are_called_better(document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors("miss", 60, np.random.default_rng(0))
    worse = run(annotation_file, injected.results, "worse")
    better = run(annotation_file, perfect_results(document), "better")
    difference, same = compare([worse, better, worse], resamples=200, progress=False)
    assert same.name == "worse" and same.images == []
    assert (difference.baseline, difference.name, difference.resamples) == ("worse", "better", 200)
    assert difference.ap_difference == pytest.approx(1 - worse.ap)
    low, high = difference.interval
    assert 0 < low < difference.ap_difference < high and difference.significant and difference.share_better == 1
    touched = {people_of(document)[row]["image_id"] for row, keypoints in injected.touched.items() if keypoints}
    assert {image.id for image in difference.images} == touched
    gains = [image.after - image.before for image in difference.images]
    assert min(gains) > 0 and gains == sorted(gains, reverse=True)

    [reverse] = compare([better, worse], resamples=200, progress=False)
    assert reverse.interval == pytest.approx((-high, -low)) and reverse.share_better == 0


def test_noise_is_not_significant(document: dict[str, Any], annotation_file: Path) -> None:
    """Two results with equally many errors of the same kind in different keypoints."""
    diagnoses = []
    for seed in (1, 2):
        injected = InjectedErrors.start(document)
        injected.add_keypoint_errors("miss", 60, np.random.default_rng(seed))
        diagnoses.append(run(annotation_file, injected.results))
    [difference] = compare(diagnoses, resamples=200, progress=False)
    assert difference.ap_difference != 0 and not difference.significant
    assert 0.01 < difference.share_better < 0.99
    [again, other] = (compare(diagnoses, resamples=200, seed=seed, progress=False) for seed in (0, 1))
    assert again[0].interval == difference.interval != other[0].interval, "the seed decides the interval"


def test_the_interval_is_that_of_pycocotools_on_resampled_images(drawn: dict[str, Any], drawn_file: Path) -> None:
    """Every resample, evaluated as a data set in which images appear several times."""
    rng = np.random.default_rng(3)
    files = []
    for seed in (4, 5):
        injected = InjectedErrors.start(drawn)
        injected.add_keypoint_errors("miss", 40, np.random.default_rng(seed))
        injected.add_background(20, rng, score=0.85)
        for result, score in zip(injected.results, rng.permutation(len(injected.results)).tolist()):
            result["score"] = score
        files.append(injected.results)
    [difference] = compare([run(drawn_file, file) for file in files], resamples=10, seed=7, progress=False)
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


def moved_keypoint(document: dict[str, Any]) -> None:
    people_of(document)[0]["keypoints"][0] += 1


def other_area(document: dict[str, Any]) -> None:
    people_of(document)[-1]["area"] += 1


def no_longer_a_crowd(document: dict[str, Any]) -> None:
    next(entry for entry in document["annotations"] if entry["iscrowd"])["iscrowd"] = 0


def one_image_less(document: dict[str, Any]) -> None:
    document["images"].pop()
    ids = {image["id"] for image in document["images"]}
    document["annotations"] = [entry for entry in document["annotations"] if entry["image_id"] in ids]


@pytest.mark.parametrize("change", [moved_keypoint, other_area, no_longer_a_crowd, one_image_less])
def test_results_of_other_annotations_are_refused(change: Any, drawn: dict[str, Any], tmp_path: Path) -> None:
    """Also if the images have the same people, but with other labels."""
    diagnoses = []
    for name, content in (("first", drawn), ("second", copy.deepcopy(drawn))):
        if name == "second":
            change(content)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        diagnoses.append(run(path, [], name))
    with pytest.raises(DataError, match="first and second were diagnosed with different annotations"):
        compare(diagnoses, progress=False)


def test_other_skeletons_and_a_single_diagnosis_are_refused(drawn: dict[str, Any], drawn_file: Path) -> None:
    strict = dataclasses.replace(COCO, sigmas=tuple(sigma / 2 for sigma in COCO.sigmas))
    diagnoses = [diagnose(drawn_file, [], skeleton=skeleton, progress=False) for skeleton in (COCO, strict)]
    with pytest.raises(DataError, match="skeleton"):
        compare(diagnoses, progress=False)
    with pytest.raises(ValueError, match="two diagnoses or more"):
        compare(diagnoses[:1])
