"""What the scripts of the page read."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from posenet.report.page_data import build_page_data
from posenet.report.thumbnails import Thumbnail
from tests.helpers.diagnoses import diagnosis_of, image_of, small_diagnosis, true_person, two_runs

NO_IMAGE = Thumbnail(b"", "no image")


def test_it_states_the_values_of_the_diagnosis() -> None:
    diagnosis = small_diagnosis(ap=0.4)
    data = build_page_data([diagnosis], None, [], [])
    [run] = data["runs"]
    assert run["metrics"]["AP"] == diagnosis.ap
    assert run["corrected"] == diagnosis.corrected
    assert run["counts"]["jitter"] == 2
    assert run["keypoints"][0] == [
        diagnosis.keypoints["nose"][kind] for kind in ("good", "jitter", "inversion", "swap", "miss")
    ]
    assert data["images"] == 5
    assert data["people"] == 7
    assert data["comparison"] == []
    json.dumps(data, allow_nan=False)


def test_curves_are_rounded_to_thousandths() -> None:
    diagnosis = small_diagnosis()
    [run] = build_page_data([diagnosis], None, [], [])["runs"]
    assert np.abs(np.array(run["precision"]["swap"]) / 1000 - diagnosis.precision["swap"]).max() <= 0.0005
    assert set(run["precision"]) == {"uncorrected", *diagnosis.corrected}


def test_an_image_has_its_people_and_those_of_every_results_file() -> None:
    diagnoses, comparison = two_runs()
    data = build_page_data(diagnoses, comparison, [2], [Thumbnail(b"jpeg", "")])
    [image] = data["gallery"]
    assert image["id"] == 13
    assert base64.b64decode(image["jpeg"]) == b"jpeg"
    assert image["truth"][0]["size"] == "small"
    before, after = image["runs"]
    assert before["people"][0]["kinds"] == "m" * 8 + "g" * 9
    assert after["people"][0]["kinds"] == "g" * 17
    assert before["loss"] > after["loss"] == 0
    [difference] = data["comparison"]
    assert difference["interval"] == [0.01, 0.09]
    assert difference["images"] == [{"id": 13, "before": pytest.approx(9 / 17), "after": 1.0}]


def test_keypoints_that_are_not_labelled_or_not_found_have_no_position() -> None:
    person = true_person(100)
    person.keypoints[3, 2] = 0
    image = image_of(1, [person], [{}])
    result = image.results[0]
    result.keypoints[:, 2] = 1
    result.keypoints[5, 2] = 0
    kinds = (*result.kinds[:3], None, *result.kinds[4:])
    image = replace(image, results=[replace(result, kinds=kinds)])
    [shown] = build_page_data([diagnosis_of([image])], None, [0], [NO_IMAGE])["gallery"]
    assert shown["truth"][0]["keypoints"][3] is None
    found = shown["runs"][0]["people"][0]
    assert found["keypoints"][5] is None
    assert found["kinds"][3] == "."
    assert found["keypoints"][4] is not None


def test_results_whose_third_values_are_all_0_are_shown_with_all_keypoints() -> None:
    image = image_of(1, [true_person(100)], [{}])
    image.results[0].keypoints[:, 2] = 0
    [shown] = build_page_data([diagnosis_of([image])], None, [0], [NO_IMAGE])["gallery"]
    assert None not in shown["runs"][0]["people"][0]["keypoints"]
