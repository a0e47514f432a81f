"""People sliced by what may make them hard to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS
from tests.helpers.coco_results import (
    InjectedErrors,
    coco_ap,
    make_document,
    people_of,
    perfect_results,
    plain_coco,
)
from tests.helpers.drawn_data import person as box_person


def test_each_dimension_holds_everybody_once(diagnosis: Diagnosis) -> None:
    assert list(diagnosis.sensitivity) == ["size", "crowding"]
    for slices in diagnosis.sensitivity.values():
        assert sum(part.people for part in slices) == diagnosis.num_people
        assert sum(part.missed for part in slices) == diagnosis.missed
        assert all((part.ap == -1) == (part.people == 0) for part in slices)
        for kind in KEYPOINT_KINDS:
            assert sum(part.counts[kind] for part in slices) == diagnosis.counts[kind]


def test_the_ap_of_a_slice_is_that_of_pycocotools_without_others(
    document: dict[str, Any], annotation_file: Path
) -> None:
    """Without background, so that every result belongs to somebody."""
    rng = np.random.default_rng(3)
    results = perfect_results(document)
    people = people_of(document)
    for result, person in zip(results, people):
        noise = rng.normal(0, 0.1 * rng.random() * person["area"] ** 0.5, (17, 2))
        keypoints = np.array(result["keypoints"]).reshape(17, 3)
        keypoints[:, :2] += noise
        result["keypoints"] = keypoints.ravel().tolist()
        result["score"] = float(rng.random())
    diagnosis = diagnose(annotation_file, results, progress=False)
    truth = diagnosis.matched.truth
    boxes = [(diagnosis.images[image].id, *box) for image, box in zip(truth.image, truth.boxes.tolist())]
    for number, part in enumerate(diagnosis.sensitivity["crowding"]):
        if part.people < 20:  # their AP depends on single results, which belong to nobody for one of the two
            continue
        chosen = (diagnosis.groups["crowding"].number == number) & truth.people
        members = {box for box, is_member in zip(boxes, chosen) if is_member}

        def is_member(entry: dict[str, Any]) -> bool:
            return (entry["image_id"], *map(float, entry["bbox"])) in members

        entries = [e if is_member(e) else e | {"num_keypoints": 0} for e in document["annotations"]]
        kept = [result for result, person in zip(results, people) if is_member(person)]
        assert 0.2 < part.ap < 1
        assert part.ap == pytest.approx(coco_ap(plain_coco(document | {"annotations": entries}, kept)), abs=0.02)


def test_results_that_resemble_nobody_count_against_no_slice_but_a_size(
    document: dict[str, Any], annotation_file: Path
) -> None:
    injected = InjectedErrors.start(document)
    perfect = diagnose(annotation_file, injected.results, progress=False)
    injected.add_background(30, np.random.default_rng(3), score=0.95)
    diagnosis = diagnose(annotation_file, injected.results, progress=False)
    assert diagnosis.ap < 0.99
    for dimension in set(diagnosis.sensitivity) - {"size"}:
        assert diagnosis.sensitivity[dimension] == perfect.sensitivity[dimension]


def groups_of(tmp_path: Path, dimension: str, *annotations: dict[str, Any]) -> list[str]:
    """The group of every annotation."""
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document(annotations)))
    names, numbers = diagnose(path, [], progress=False).groups[dimension]
    return [names[number] for number in numbers]


def test_crowding_counts_the_people_whose_boxes_overlap(tmp_path: Path) -> None:
    people = [
        box_person(0, 1, (10, 10, 40, 40)),
        box_person(0, 1, (20, 10, 40, 40)),  # IoU 0.6 with the first
        box_person(0, 1, (30, 10, 40, 40), 0),  # without labelled keypoints, but there
        box_person(0, 1, (46, 10, 40, 40), iscrowd=1),  # a region, not a person
        box_person(0, 1, (66, 10, 40, 40)),  # overlaps a little: IoU 4 / 76 with the third
    ]
    assert groups_of(tmp_path, "crowding", *people) == ["1-2", "1-2", "1-2", "0", "0"]
    pair = [box_person(0, 1, (x, 10, 40, 40)) for x in (10, 36)]  # IoU 14 / 66
    assert groups_of(tmp_path, "crowding", *pair) == ["1-2"] * 2
    crowd = [box_person(0, 1, (x, 10, 40, 40)) for x in (10, 12, 14, 16)]
    assert groups_of(tmp_path, "crowding", *crowd) == ["3 or more"] * 4


def test_sizes_are_cocos(tmp_path: Path) -> None:
    areas = (1000, 1024, 96**2, 96**2 + 1)
    people = [box_person(0, 1, (20 + number, 20, 50, 60), 8, area=area) for number, area in enumerate(areas)]
    assert groups_of(tmp_path, "size", *people) == ["small", "medium", "medium", "large"]
