"""COCO evaluation: predicting a split, the results file, the metrics, and the tool."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.people import read_split
from posenet.errors import DataError
from posenet.inference.evaluation import (
    METRICS,
    compute_coco_metrics,
    evaluate,
    find_annotated_images,
    predict_annotated_images,
)
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from posenet.visualization.drawing import MIN_SCORE
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.spot_networks import LinearSpotNetwork, write_spot_split


def test_the_truth_scores_one_and_missed_people_count(tmp_path: Path) -> None:
    """The metrics are of the whole split, not of the images that have results."""
    people = [person(number, number, (5, 5, 45, 75)) for number in range(1, 7)]
    content = document(range(1, 8), [*people, person(900, 1, labelled=0, iscrowd=1)])
    split = read_split(write_annotations(tmp_path / "a.json", content))
    truth = [{key: one[key] for key in ("image_id", "category_id", "keypoints")} | {"score": 0.9} for one in people]
    whole = compute_coco_metrics(truth, split)
    assert whole.images == 7 and tuple(whole.metrics) == METRICS and whole.metrics["APL"] == -1
    names, values = whole.table().splitlines()
    assert names.split() == list(METRICS)
    assert values.split() == ["1.000"] * 4 + ["-"] + ["1.000"] * 4 + ["-"]
    assert compute_coco_metrics(truth[:2], split).metrics["AR"] == pytest.approx(2 / 6)
    nobody = [truth[0] | {"keypoints": [600, 600, 1] * 17}]
    assert compute_coco_metrics(nobody, split).table().splitlines()[1].split()[:2] == ["0.000"] * 2


def test_images_of_one_shape_come_together(tmp_path: Path) -> None:
    split = read_split(write_spot_split(tmp_path))
    blocks = find_annotated_images(tmp_path, split.images, 3)
    images = [image for image, _ in itertools.chain(*blocks)]
    ratios = [image.width / image.height for image in images]
    assert len(blocks) == 3 and ratios == sorted(ratios) and {image.id for image in images} == set(range(1, 9))


def test_missing_and_damaged_images_are_named(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path)
    (tmp_path / "3.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"3\.png"):
        evaluate(spot_file, tmp_path, annotations, progress=False)
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"1 of 8 images are missing.*3\.png"):
        evaluate(spot_file, tmp_path, annotations, progress=False)


def test_batches_and_shares_give_one_result(tmp_path: Path) -> None:
    """Sums differ in their last digits between batch sizes, so coordinates may differ by a thousandth of a pixel."""
    split = read_split(write_spot_split(tmp_path))

    def results(batch_size: int, world_size: int = 1) -> list[dict[str, Any]]:
        predictor = Predictor(LinearSpotNetwork(), InferenceConfig(height=128, batch_size=batch_size), min_score=0)
        found = []
        for rank in range(world_size):
            images = [*itertools.chain(*find_annotated_images(tmp_path, split.images, batch_size))][rank::world_size]
            for item in predict_annotated_images(predictor, images):
                found += item.to_coco(1)
        return sorted(found, key=lambda result: (result["image_id"], -result["score"]))

    expected = results(1)
    metrics = compute_coco_metrics(expected, split).metrics
    assert {result["image_id"] for result in expected} == set(range(1, 9))
    for batch_size, world_size in ((4, 1), (3, 1), (8, 3), (2, 2)):
        others = results(batch_size, world_size)
        assert [other["image_id"] for other in others] == [one["image_id"] for one in expected]
        np.testing.assert_allclose([other["score"] for other in others], [one["score"] for one in expected], atol=1e-4)
        assert compute_coco_metrics(others, split).metrics == pytest.approx(metrics, abs=1e-6)
    assert 0.1 < metrics["AP"] < 0.9


def test_categories_with_the_same_keypoints_are_evaluated_as_one(tmp_path: Path) -> None:
    """A dog that is found as a cat is found, because they share the keypoints."""
    dog = person(1, 1, category_id=9)
    content = document([1], [dog])
    [category] = content["categories"]
    content["categories"] = [category | {"id": 7, "name": "cat"}, category | {"id": 9, "name": "dog"}]
    path = write_annotations(tmp_path / "animals.json", content)
    found = [{"image_id": 1, "category_id": 7, "keypoints": dog["keypoints"], "score": 1.0}]
    assert compute_coco_metrics(found, read_split(path)).metrics["AP"] == pytest.approx(1)


def test_people_who_are_not_labelled_do_not_lower_the_recommended_min_score(tmp_path: Path) -> None:
    """The last right result comes after two wrong ones: it is worth them only if more people are to be found."""
    people = [person(number, number) for number in range(1, 5)]
    right = [{"image_id": one["image_id"], "category_id": 1, "keypoints": one["keypoints"]} for one in people]
    wrong = [one | {"keypoints": [1, 1, 2] * 17, "score": 0.12} for one in right[:2]]
    results = [*wrong, *(one | {"score": score} for one, score in zip(right, (0.24, 0.21, 0.19, 0.1)))]
    for unlabelled in (0, 10):
        others = [person(100 + number, 5, labelled=0) for number in range(unlabelled)]
        content = document(range(1, 6), [*people, *others])
        split = read_split(write_annotations(tmp_path / f"{unlabelled}.json", content))
        assert compute_coco_metrics(results, split).min_score == 0.15


def test_results_that_match_nobody_to_be_found_do_not_change_the_recommended_min_score(tmp_path: Path) -> None:
    """They lie on a crowd region and on a person without labelled keypoints, and are neither right nor wrong."""
    others = [person(100, 2, labelled=0, iscrowd=1), person(101, 3, labelled=0)]
    split = read_split(write_annotations(tmp_path / "a.json", document([1, 2, 3], [person(1, 1), *others])))
    result = {"category_id": 1, "keypoints": person(1, 1)["keypoints"]}
    scores = {1: 0.9, 2: 0.1, 3: 0.1}
    results = [result | {"image_id": image_id, "score": score} for image_id, score in scores.items()]
    assert compute_coco_metrics(results, split).min_score == MIN_SCORE


def test_a_lower_min_score_is_recommended_where_right_people_score_low(tmp_path: Path) -> None:
    people = [person(number, number) for number in range(1, 5)]
    split = read_split(write_annotations(tmp_path / "a.json", document(range(1, 5), people)))
    right = [
        # OKS 9 / 17, above 0.50 and below 0.55
        {"image_id": one["image_id"], "category_id": 1, "keypoints": one["keypoints"][:27] + [9999, 9999, 2] * 8}
        for one in people
    ]
    wrong = [one | {"keypoints": [1, 1, 2] * 17, "score": 0.05} for one in right]
    low = [one | {"score": score} for one, score in zip(right, (0.24, 0.21, 0.19, 0.17))]
    evaluation = compute_coco_metrics([*low, *wrong], split)
    assert evaluation.min_score == 0.15 and "--min-score 0.15 " in evaluation.advise_on_min_score()
    assert compute_coco_metrics([one | {"score": 0.04} for one in right], split).min_score == 0.04
    tied = [one | {"score": 0.2} for one in [right[0], *(wrong * 3)]]  # and no threshold separates these
    assert compute_coco_metrics([*tied, *[one | {"score": 0.3} for one in right[1:]]], split).min_score == MIN_SCORE
    high = [one | {"score": 0.8} for one in right]
    for results in (high, wrong, []):
        evaluation = compute_coco_metrics(results, split)
        assert evaluation.min_score == MIN_SCORE and not evaluation.advise_on_min_score()
