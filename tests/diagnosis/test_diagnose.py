"""Known errors in perfect results are found, each with its number."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posenet
from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.result import CORRECTIONS, KINDS, UNCORRECTED, Diagnosis
from posenet.errors import DataError
from posenet.inference.coco_evaluation import METRICS
from posenet.skeleton import COCO
from tests.helpers.coco_results import (
    InjectedErrors,
    classify,
    coco_ap,
    people_of,
    perfect_results,
    plain_coco,
    random_results,
)

EXACT = 1e-9
ERRORS = ("jitter", "inversion", "swap", "miss")
COUNTS = {"jitter": 40, "inversion": 25, "swap": 6, "miss": 30}


def run(path: Path, results: list[dict[str, Any]]) -> Diagnosis:
    return diagnose(path, results, progress=False)


def labelled_keypoints(document: dict[str, Any]) -> int:
    return sum(person["num_keypoints"] for person in people_of(document))


def check_counts(diagnosis: Diagnosis, injected: InjectedErrors) -> None:
    """The diagnosis has exactly the injected errors, in total and of every keypoint."""
    expected = {kind: injected.count(kind) for kind in ERRORS}
    assert {kind: diagnosis.counts[kind] for kind in ERRORS} == expected
    for k, name in enumerate(COCO.file_names):
        for kind in ERRORS:
            assert diagnosis.keypoints[name][kind] == injected.keypoints[kind, k], (name, kind)
    assert diagnosis.background == injected.background
    assert diagnosis.missed == injected.missed
    evaluation = plain_coco(injected.document, injected.results)
    assert list(diagnosis.metrics.values()) == pytest.approx(evaluation.stats.tolist(), abs=EXACT)


def test_perfect_results_have_no_errors(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, perfect_results(document))
    assert diagnosis.counts == {"good": labelled_keypoints(document), **dict.fromkeys(KINDS[1:], 0)}
    assert diagnosis.background == diagnosis.missed == 0
    assert [*diagnosis.corrected.values(), *diagnosis.alone.values()] == pytest.approx([1.0] * 14, abs=EXACT)
    assert diagnosis.num_people == diagnosis.num_results == len(people_of(document))


@pytest.mark.parametrize("kind", ERRORS)
def test_each_kind_of_keypoint_error_is_found(kind: str, document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors(kind, COUNTS[kind], np.random.default_rng(1))
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    assert diagnosis.counts["good"] == labelled_keypoints(document) - COUNTS[kind]
    assert diagnosis.ap < 1
    assert diagnosis.alone[kind] == diagnosis.corrected["jitter"] > diagnosis.ap
    for other in set(ERRORS) - {kind}:
        assert diagnosis.alone[other] == diagnosis.ap
    if kind in ("inversion", "swap"):  # they lie exactly on another keypoint, so the corrected ones are exact
        assert diagnosis.alone[kind] == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize(("similarity", "kind"), [(0.84, "jitter"), (0.51, "jitter"), (0.86, "good")])
def test_a_jitter_is_a_similarity_from_one_half_to_085(
    similarity: float, kind: str, document: dict[str, Any], annotation_file: Path
) -> None:
    injected = InjectedErrors.start(document)
    if kind == "good":
        people = people_of(document)
        injected.results[0]["keypoints"] = shifted(people[0], similarity)
        assert run(annotation_file, injected.results).counts["jitter"] == 0
        return
    injected.add_keypoint_errors("jitter", 20, np.random.default_rng(2), similarity)
    check_counts(run(annotation_file, injected.results), injected)


def shifted(person: dict[str, Any], similarity: float) -> list[float]:
    """The keypoints of a person, each at a distance of this similarity to the right."""
    keypoints = np.array(person["keypoints"], float).reshape(17, 3)
    keypoints[:, 0] += np.sqrt(-2 * np.log(similarity) * person["area"]) * 2 * np.array(COCO.sigmas)
    return keypoints.ravel().tolist()


def test_background_results_are_found(document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.add_background(30, np.random.default_rng(3), score=0.95)
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    assert diagnosis.ap < 1
    assert diagnosis.alone["background"] == diagnosis.alone["score"] == pytest.approx(1, abs=EXACT)
    assert diagnosis.alone["missed"] == diagnosis.ap
    assert (diagnosis.background_by_threshold == 30).all()


def test_missed_people_are_found(document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.remove_people(10, np.random.default_rng(4))
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    assert diagnosis.alone["missed"] == pytest.approx(1, abs=EXACT)
    assert diagnosis.alone["background"] == diagnosis.alone["score"] == diagnosis.corrected["score"] == diagnosis.ap < 1
    assert diagnosis.costs["missed"] == pytest.approx(1 - diagnosis.ap)
    assert sum(part.missed for part in diagnosis.sensitivity["crowding"]) == 10


def test_spoiled_scores_are_found(document: dict[str, Any], annotation_file: Path) -> None:
    """Random scores cost AP where some results are worse than others; a ranking by the true OKS has it back."""
    rng = np.random.default_rng(5)
    injected = InjectedErrors.start(document)
    injected.add_background(30, rng)
    well_ranked = run(annotation_file, injected.results)
    for result, score in zip(injected.results, rng.random(len(injected.results)).tolist()):
        result["score"] = score
    spoiled = run(annotation_file, injected.results)
    check_counts(spoiled, injected)
    assert well_ranked.ap == pytest.approx(1, abs=EXACT) and spoiled.ap < 0.99
    assert spoiled.costs["score"] == pytest.approx(1 - spoiled.ap)
    assert spoiled.alone["score"] == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_mixed_errors_are_all_found(seed: int, document: dict[str, Any], annotation_file: Path) -> None:
    rng = np.random.default_rng(seed)
    injected = InjectedErrors.start(document)
    for kind in rng.permutation(ERRORS).tolist():
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


def test_correcting_inversions_alone_leaves_the_other_errors(document: dict[str, Any], annotation_file: Path) -> None:
    """The AP is that of pycocotools on the results without the inversions."""
    rng = np.random.default_rng(6)
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors("miss", 20, rng)
    injected.add_keypoint_errors("jitter", 20, rng)
    expected = coco_ap(plain_coco(document, injected.results))
    injected.add_keypoint_errors("inversion", 20, rng)
    assert run(annotation_file, injected.results).alone["inversion"] == pytest.approx(expected, abs=EXACT)


def test_every_keypoint_is_what_the_definition_says(document: dict[str, Any], annotation_file: Path) -> None:
    """Random results, one keypoint at a time."""
    diagnosis = run(annotation_file, random_results(document, np.random.default_rng(8)))
    people_in: dict[int, list[dict[str, Any]]] = {}
    for person in people_of(document):
        people_in.setdefault(person["image_id"], []).append(person)
    seen = dict.fromkeys(KINDS, 0)
    for image in diagnosis.images:
        for result in image.results:
            if result.person is None:
                assert set(result.kinds) == {None}
                continue
            owner = people_in[image.id][result.person]
            others = [person for person in people_in[image.id] if person is not owner]
            for k, kind in enumerate(result.kinds):
                if owner["keypoints"][3 * k + 2] == 0:
                    assert kind is None
                else:
                    x, y = result.keypoints[k, :2].tolist()
                    assert kind == classify((x, y), k, owner, others)[0]
                    seen[kind] += 1
    assert seen == diagnosis.counts and min(seen.values()) > 0


def test_the_metrics_are_those_of_pycocotools(document: dict[str, Any], annotation_file: Path) -> None:
    results = random_results(document, np.random.default_rng(9))
    diagnosis = run(annotation_file, results)
    expected = plain_coco(document, results)
    assert diagnosis.metrics == pytest.approx(dict(zip(METRICS, expected.stats.tolist())), abs=EXACT)
    precision = expected.eval["precision"][:, :, 0, 0, 0]
    assert (diagnosis.precision[UNCORRECTED] == precision).all()
    np.testing.assert_allclose(diagnosis.ap_by_threshold, precision.mean(axis=1), rtol=0, atol=EXACT)


def test_the_images_hold_who_was_found(document: dict[str, Any], annotation_file: Path) -> None:
    injected = InjectedErrors.start(document)
    injected.remove_people(5, np.random.default_rng(10))
    injected.add_background(5, np.random.default_rng(10))
    diagnosis = run(annotation_file, random_results(document, np.random.default_rng(11)))
    assert [image.id for image in diagnosis.images] == [image["id"] for image in document["images"]]
    for image in diagnosis.images:
        assert len(image.results) <= 20
        assert [result.score for result in image.results] == sorted((r.score for r in image.results), reverse=True)
        for index, person in enumerate(image.people):
            if person.result is None:
                assert person.oks == 0 and person.missed
            else:
                assert image.results[person.result].person == index
                assert image.results[person.result].oks == person.oks >= 0.1
        for result in image.results:
            assert not (result.background and result.ignored)
    results = [result for image in diagnosis.images for result in image.results]
    assert sum(result.background for result in results) == diagnosis.background
    assert any(result.ignored for result in results) or not any(image.ignored_boxes for image in diagnosis.images)
    people = [person for image in diagnosis.images for person in image.people]
    assert sum(person.missed for person in people) == diagnosis.missed


def test_of_two_results_for_a_person_the_better_one_has_the_true_oks(drawn: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    results = perfect_results(drawn)
    worse = copy.deepcopy(results[0]) | {"score": 1.0}
    worse["keypoints"][::3] = [x + 1 for x in worse["keypoints"][::3]]
    diagnosis = run(path, [worse, *results])
    [image] = [image for image in diagnosis.images if image.id == worse["image_id"]]
    first, *others = image.results
    assert first.person == 0 and 0.1 <= first.oks < 1
    assert first.true_oks == 0
    assert [result.true_oks for result in others] == pytest.approx([1.0] * len(others))


def test_results_without_people_miss_everybody(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, [])
    assert diagnosis.ap == 0 and diagnosis.num_results == 0
    assert diagnosis.missed == len(people_of(document)) and diagnosis.background == 0
    assert diagnosis.costs == {**dict.fromkeys(CORRECTIONS, 0.0), "missed": 1.0}
    assert diagnosis.alone == {**dict.fromkeys(CORRECTIONS, 0.0), "missed": 1.0}


def test_only_chosen_images_are_diagnosed(drawn: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    chosen = {person["image_id"] for person in people_of(drawn)[:3]}
    results = [result for result in perfect_results(drawn) if result["image_id"] in chosen]
    diagnosis = posenet.diagnose(path, results, image_ids=chosen, progress=False)
    assert {image.id for image in diagnosis.images} == chosen and diagnosis.ap == pytest.approx(1)


def test_other_skeletons_have_their_own_sigmas_and_sides(drawn: dict[str, Any], tmp_path: Path) -> None:
    """A skeleton of three keypoints, one pair of them left and right."""
    skeleton = posenet.Skeleton(
        keypoints=("top", "L", "R"),
        parts=(("top", "L"), ("top", "R")),
        left_right=(("L", "R"),),
        derived={},
        file_keypoints=("top", "L", "R"),
        file_names=("top", "left", "right"),
        sigmas=(0.1, 0.05, 0.05),
    )
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
    assert diagnosis.counts["inversion"] == diagnosis.keypoints["left"]["inversion"] * 2 == 10
    expected = coco_ap(plain_coco(document, results, sigmas=skeleton.sigmas))
    assert diagnosis.ap == pytest.approx(expected, abs=EXACT)


def test_annotations_without_people_are_refused(drawn: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text(json.dumps(drawn | {"annotations": []}))
    with pytest.raises(DataError, match="no people with labelled keypoints"):
        diagnose(path, [], progress=False)
