"""Known errors in perfect results are found, each with its number; and the numbers are those of ``pycocotools``."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posenet
from posenet.diagnosis.diagnose import UNCORRECTED, Diagnosis, diagnose, write_diagnosis_file
from posenet.diagnosis.keypoint_errors import CORRECTIONS, KEYPOINT_KINDS, LOCALISATION, UNLABELLED
from posenet.diagnosis.matching import OKS_THRESHOLDS
from posenet.diagnosis.report import write_report
from posenet.errors import DataError
from posenet.inference.evaluation import METRICS
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_to_toml
from tests.helpers.coco_results import (
    InjectedErrors,
    classify,
    coco_ap,
    make_document,
    people_of,
    perfect_results,
    plain_coco,
    random_results,
)
from tests.helpers.drawn_data import person as box_person

EXACT = 1e-9
BY_THRESHOLD = ("background_by_threshold", "missed_by_threshold")
COUNTS = {"jitter": 150, "inversion": 25, "swap": 6, "miss": 30}


def run(path: Path, results: list[dict[str, Any]]) -> Diagnosis:
    return diagnose(path, results, progress=False)


def labelled_keypoints(document: dict[str, Any]) -> int:
    return sum(person["num_keypoints"] for person in people_of(document))


def check_counts(diagnosis: Diagnosis, injected: InjectedErrors) -> None:
    """The diagnosis has exactly the injected errors, in total and of every keypoint, and COCO's metrics."""
    assert {kind: diagnosis.counts[kind] for kind in LOCALISATION} == {k: injected.count(k) for k in LOCALISATION}
    for k, name in enumerate(COCO.file_names):
        for kind in LOCALISATION:
            assert diagnosis.keypoints[name][kind] == injected.keypoints[kind, k], (name, kind)
    assert diagnosis.background_by_threshold[0] == injected.background
    assert diagnosis.missed_by_threshold[0] == injected.missed
    evaluation = plain_coco(injected.document, injected.results)
    assert diagnosis.metrics == pytest.approx(dict(zip(METRICS, evaluation.stats.tolist())), abs=EXACT)


def test_perfect_results_have_no_errors(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, perfect_results(document))
    assert diagnosis.counts == {"good": labelled_keypoints(document), **dict.fromkeys(LOCALISATION, 0)}
    assert diagnosis.background_by_threshold == diagnosis.missed_by_threshold == [0] * 10
    assert [*diagnosis.corrected.values(), *diagnosis.alone.values()] == pytest.approx([1.0] * 14, abs=EXACT)
    assert diagnosis.num_people == diagnosis.num_results == len(people_of(document))


@pytest.mark.parametrize("kind", LOCALISATION)
def test_each_kind_of_keypoint_error_is_found(kind: str, document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors(kind, COUNTS[kind], np.random.default_rng(1))
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    assert diagnosis.counts["good"] == labelled_keypoints(document) - COUNTS[kind]
    assert diagnosis.alone[kind] == diagnosis.corrected["jitter"] > diagnosis.ap
    for other in set(LOCALISATION) - {kind}:
        assert diagnosis.alone[other] == diagnosis.ap
    if kind in ("inversion", "swap"):  # they lie exactly on another keypoint, so the corrected ones are exact
        assert diagnosis.alone[kind] == pytest.approx(1, abs=EXACT)


def test_mixed_errors_are_all_found(document: dict[str, Any], annotation_file: Path) -> None:
    rng = np.random.default_rng(0)
    injected = InjectedErrors.start(document)
    for kind in rng.permutation(LOCALISATION).tolist():
        injected.add_keypoint_errors(kind, COUNTS[kind] // 2, rng)
    injected.remove_people(6, rng)
    injected.add_background(12, rng, score=0.85)
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    stages = [diagnosis.ap, *diagnosis.corrected.values()]
    assert list(diagnosis.corrected) == list(diagnosis.alone) == list(CORRECTIONS)
    assert stages == sorted(stages) and stages[-1] == 1
    assert min(diagnosis.alone.values()) >= diagnosis.ap and diagnosis.alone["missed"] > diagnosis.ap
    assert diagnosis.ap + sum(diagnosis.costs.values()) == pytest.approx(1)


def test_every_keypoint_is_what_the_definition_says(document: dict[str, Any], annotation_file: Path) -> None:
    """Random results, one keypoint at a time; and COCO's metrics of them."""
    results = random_results(document, np.random.default_rng(8))
    diagnosis = run(annotation_file, results)
    matched = diagnosis.matched
    for row, person in enumerate(matched.person.tolist()):
        if person < 0:
            assert (matched.kinds[row] == UNLABELLED).all()
            continue
        same_image = np.flatnonzero(matched.truth.people & (matched.truth.image == matched.truth.image[person]))
        entries = {
            other: {"keypoints": matched.truth.keypoints[other].ravel(), "area": matched.truth.areas[other]}
            for other in same_image.tolist()
        }
        owner = entries.pop(person)
        for k, kind in enumerate(matched.kinds[row].tolist()):
            if owner["keypoints"][3 * k + 2] == 0:
                assert kind == UNLABELLED
            else:
                x, y = matched.results.keypoints[row, k, :2].tolist()
                assert KEYPOINT_KINDS[kind] == classify((x, y), k, owner, entries.values())
    assert min(diagnosis.counts.values()) > 0
    expected = plain_coco(document, results)
    assert diagnosis.metrics == pytest.approx(dict(zip(METRICS, expected.stats.tolist())), abs=EXACT)
    precision = expected.eval["precision"][:, :, 0, 0, 0]
    np.testing.assert_allclose(diagnosis.precision[UNCORRECTED], precision, rtol=0, atol=EXACT)
    assert list(OKS_THRESHOLDS) == expected.params.iouThrs.tolist(), "to the last bit: its 0.9 is a little less"


def test_of_two_results_for_a_person_the_better_one_has_the_true_oks(drawn: dict[str, Any], drawn_file: Path) -> None:
    results = perfect_results(drawn)
    worse = copy.deepcopy(results[0]) | {"score": 1.0}
    worse["keypoints"][::3] = [x + 1 for x in worse["keypoints"][::3]]
    far = copy.deepcopy(results[0]) | {"score": 1.0}
    far["keypoints"][::3] = [x + 3 * people_of(drawn)[0]["area"] ** 0.5 for x in far["keypoints"][::3]]
    assert run(drawn_file, [far]).matched.true_oks().tolist() == [0]
    diagnosis = run(drawn_file, [worse, *results])
    index = [image.id for image in diagnosis.images].index(worse["image_id"])
    first, *others = diagnosis.matched.true_oks()[diagnosis.matched.results.image == index]
    assert first == 0 and others == pytest.approx([1.0] * len(others))


def test_results_without_people_miss_everybody(drawn: dict[str, Any], drawn_file: Path) -> None:
    diagnosis = run(drawn_file, [])
    assert diagnosis.ap == 0 and diagnosis.num_results == 0
    assert diagnosis.missed_by_threshold == [len(people_of(drawn))] * 10
    assert diagnosis.background_by_threshold == [0] * 10
    assert diagnosis.costs == diagnosis.alone == {**dict.fromkeys(CORRECTIONS, 0.0), "missed": 1.0}
    [far, *_] = perfect_results(drawn)
    far["keypoints"] = [value + 5000 for value in far["keypoints"]]
    diagnosis = run(drawn_file, [far])
    assert diagnosis.alone["missed"] == 0, "a false positive is left, and nobody to be found"
    assert diagnosis.corrected["background"] == 0 and diagnosis.corrected["missed"] == 1


def test_a_file_of_images_alone_is_refused_with_the_remedy(drawn: dict[str, Any], tmp_path: Path) -> None:
    """As COCO publishes its test sets."""
    path = tmp_path / "image_info.json"
    path.write_text(json.dumps({"images": drawn["images"]}))
    with pytest.raises(DataError, match="contains no people with labelled keypoints .*; give the person_keypoints_"):
        run(path, [])


def test_results_that_coco_does_not_evaluate_are_counted(tmp_path: Path) -> None:
    people = [box_person(0, 1, (20 * number, 10, 18, 40)) for number in range(30)]
    document = make_document(people)
    path = tmp_path / "people.json"
    path.write_text(json.dumps(document))
    diagnosis = run(path, perfect_results(document))
    assert (diagnosis.num_results, diagnosis.missed_by_threshold[0]) == (20, 10)
    text = diagnosis.describe_limit()
    assert "20 best" in text and "10 left out" in text and run(path, []).describe_limit() == ""
    assert text in " ".join(write_report(diagnosis, tmp_path, progress=False).read_text().replace("&#39;", "'").split())


def test_only_chosen_images_are_diagnosed(drawn: dict[str, Any], drawn_file: Path) -> None:
    chosen = {person["image_id"] for person in people_of(drawn)[:3]}
    results = [result for result in perfect_results(drawn) if result["image_id"] in chosen]
    diagnosis = posenet.diagnose(drawn_file, results, image_ids=chosen, progress=False)
    assert {image.id for image in diagnosis.images} == chosen and diagnosis.ap == pytest.approx(1)
    assert len(diagnosis.matched.truth.areas) == sum(entry["image_id"] in chosen for entry in drawn["annotations"])


def test_other_skeletons_have_their_own_sigmas_and_sides(drawn: dict[str, Any], tmp_path: Path) -> None:
    """A skeleton of three keypoints, one pair of them left and right."""
    skeleton = posenet.Skeleton(
        keypoints=("top", "L", "R"), parts=(("top", "L"), ("top", "R")), left_right=(("L", "R"),), derived={},
        file_keypoints=("top", "L", "R"), file_names=("top", "left", "right"), sigmas=(0.1, 0.05, 0.05),
    )  # fmt: skip
    document = copy.deepcopy(drawn)
    document["categories"] = [{"id": 1, "name": "chair", "keypoints": ["top", "left", "right"]}]
    for entry in document["annotations"]:
        entry["keypoints"] = [*entry["keypoints"][:3], *entry["keypoints"][15:21]]
        entry["num_keypoints"] = sum(value > 0 for value in entry["keypoints"][2::3])
    path = tmp_path / "chairs.json"
    path.write_text(json.dumps(document))
    results = perfect_results(document)
    people = people_of(document)
    inverted = [row for row, person in enumerate(people) if min(person["keypoints"][2::3]) > 0][:5]
    for row in inverted:
        top, left, right = (results[row]["keypoints"][start : start + 3] for start in (0, 3, 6))
        results[row]["keypoints"] = [*top, *right, *left]
    diagnosis = diagnose(path, results, skeleton=skeleton, progress=False)
    assert diagnosis.counts["inversion"] == diagnosis.keypoints["L"]["inversion"] * 2 == 10
    expected = coco_ap(plain_coco(document, results, sigmas=skeleton.sigmas))
    assert diagnosis.ap == pytest.approx(expected, abs=EXACT)
    file = tmp_path / "chair.toml"
    file.write_text(skeleton_to_toml(skeleton))
    assert diagnose(path, results, skeleton=file, progress=False).ap == diagnosis.ap
    drafted = diagnose(path, results, progress=False).matched.skeleton  # by the names and with equal OKS constants
    assert drafted.file_names == skeleton.file_names and len(set(drafted.sigmas)) == 1


def test_the_sizes_hold_everybody_once_and_have_cocos_ap(diagnosis: Diagnosis) -> None:
    assert sum(part["people"] for part in diagnosis.sizes) == diagnosis.num_people
    assert sum(part["missed"] for part in diagnosis.sizes) == diagnosis.missed_by_threshold[0]
    for kind in KEYPOINT_KINDS:
        assert sum(part["counts"][kind] for part in diagnosis.sizes) == diagnosis.counts[kind]
    by_size = {part["name"]: part["ap"] for part in diagnosis.sizes}
    assert by_size["medium"] == pytest.approx(diagnosis.metrics["APM"], abs=1e-9)
    assert by_size["large"] == pytest.approx(diagnosis.metrics["APL"], abs=1e-9)


def test_sizes_are_cocos(tmp_path: Path) -> None:
    areas = (1000, 1024, 96**2, 96**2 + 1)
    people = [box_person(0, 1, (20 + number, 20, 50, 60), 8, area=area) for number, area in enumerate(areas)]
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document(people)))
    diagnosis = diagnose(path, [], progress=False)
    assert [(part["name"], part["people"]) for part in diagnosis.sizes] == [("small", 1), ("medium", 2), ("large", 1)]


def test_the_json_file_has_the_numbers_of_a_diagnosis(diagnosis: Diagnosis, tmp_path: Path) -> None:
    content = json.loads(write_diagnosis_file(diagnosis, tmp_path, {"Flip": "yes"}).read_text())
    for name in ("metrics", "counts", "keypoints", "corrected", "alone", "name", *BY_THRESHOLD):
        assert content.pop(name) == getattr(diagnosis, name)
    at_50, by_threshold = content.pop("missed_at_50"), content.pop("corrected_by_threshold")
    assert np.mean(content.pop("AP_by_threshold")) == pytest.approx(diagnosis.ap)
    for kind in CORRECTIONS:
        assert np.mean(by_threshold[kind]) == pytest.approx(diagnosis.corrected[kind]) and len(by_threshold[kind]) == 10
    assert diagnosis.corrected["background"] < at_50["corrected"] < diagnosis.corrected["missed"] == 1
    assert diagnosis.ap < at_50["alone"] < diagnosis.alone["missed"]
    assert content == {
        "images": len(diagnosis.images),
        "people": diagnosis.num_people,
        "results": diagnosis.num_results,
        "AP": diagnosis.ap,
        "background": diagnosis.background_by_threshold[0],
        "missed": diagnosis.missed_by_threshold[0],
        "oks_thresholds": [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
        "left_out": diagnosis.matched.results.num_left_out,
        "sizes": list(diagnosis.sizes),
        "provenance": {"Flip": "yes"},
    }
