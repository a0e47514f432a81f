"""People sliced by what may make them hard to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS
from posenet.diagnosis.keypoint_errors import count_kinds
from posenet.diagnosis.slices import Attributes
from tests.helpers.coco_results import (
    coco_ap,
    make_document,
    people_of,
    perfect_results,
    plain_coco,
    random_results,
)
from tests.helpers.drawn_data import person as box_person


@pytest.fixture
def diagnosis(document: dict[str, Any], annotation_file: Path) -> Diagnosis:
    results = random_results(document, np.random.default_rng(0), per_image=10)
    return diagnose(annotation_file, results, progress=False)


def test_each_dimension_holds_everybody_once(diagnosis: Diagnosis) -> None:
    assert list(diagnosis.sensitivity) == ["size", "labelled keypoints", "crowding", "truncation", "occlusion"]
    for slices in diagnosis.sensitivity.values():
        assert sum(part.people for part in slices) == diagnosis.num_people
        assert sum(part.missed for part in slices) == diagnosis.missed
        assert all((part.ap == -1) == (part.people == 0) for part in slices)
        for kind in KEYPOINT_KINDS:
            assert sum(part.counts[kind] for part in slices) == diagnosis.counts[kind]


def test_a_slice_holds_the_keypoints_of_the_results_of_its_people(diagnosis: Diagnosis) -> None:
    matched = diagnosis.matched
    by_name = {part.name: part for part in diagnosis.sensitivity["crowding"]}
    for name, chosen in (("0", diagnosis.attributes.crowding == 0), ("3 or more", diagnosis.attributes.crowding > 2)):
        people = chosen & matched.truth.people
        own = np.isin(matched.person, np.flatnonzero(people))
        assert by_name[name].people == people.sum()
        assert by_name[name].counts == count_kinds(matched.kinds[own])
        assert by_name[name].missed == (diagnosis.outcome.missed[0] & people).sum()


def test_the_ap_by_size_is_cocos(diagnosis: Diagnosis) -> None:
    by_size = {part.name: part.ap for part in diagnosis.sensitivity["size"]}
    assert by_size["medium"] == pytest.approx(diagnosis.metrics["APM"], abs=1e-9)
    assert by_size["large"] == pytest.approx(diagnosis.metrics["APL"], abs=1e-9)


@pytest.mark.parametrize("size, low, high", [("small", 0, 32**2), ("medium", 32**2, 96**2), ("large", 96**2, 1e9)])
def test_people_of_other_sizes_count_nothing(
    size: str, low: float, high: float, document: dict[str, Any], annotation_file: Path
) -> None:
    found = zip(perfect_results(document), people_of(document))
    results = [result for result, person in found if low <= person["area"] < high]
    by_size = {part.name: part.ap for part in diagnose(annotation_file, results, progress=False).sensitivity["size"]}
    # In a group of people, a result may also fit somebody else.
    assert by_size == {name: pytest.approx(float(name == size), abs=0.03) for name in by_size}


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
    for part, chosen in zip(
        diagnosis.sensitivity["occlusion"], diagnosis.attributes.groups(17)["occlusion"].values(), strict=True
    ):
        if part.people < 20:  # their AP depends on single results, which belong to nobody for one of the two
            continue
        members = {box for box, is_member in zip(boxes, chosen & truth.people) if is_member}

        def is_member(entry: dict[str, Any]) -> bool:
            return (entry["image_id"], *map(float, entry["bbox"])) in members

        entries = [e if is_member(e) else e | {"num_keypoints": 0} for e in document["annotations"]]
        kept = [result for result, person in zip(results, people) if is_member(person)]
        assert 0.2 < part.ap < 1
        assert part.ap == pytest.approx(coco_ap(plain_coco(document | {"annotations": entries}, kept)), abs=0.02)


def attributes_of(tmp_path: Path, *annotations: dict[str, Any]) -> Attributes:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document(annotations)))
    return diagnose(path, [], progress=False).attributes


def test_crowding_counts_the_people_whose_boxes_overlap(tmp_path: Path) -> None:
    attributes = attributes_of(
        tmp_path,
        box_person(0, 1, (10, 10, 40, 40)),
        box_person(0, 1, (20, 10, 40, 40)),  # IoU 0.6 with the first
        box_person(0, 1, (30, 10, 40, 40), 0),  # without labelled keypoints, but there
        box_person(0, 1, (46, 10, 40, 40), iscrowd=1),  # a region, not a person
        box_person(0, 1, (66, 10, 40, 40)),  # overlaps a little: IoU 4 / 76 with the third
    )
    assert attributes.crowding.tolist() == [2, 2, 2, 0, 0]


def test_truncated_people_touch_or_leave_the_border(tmp_path: Path) -> None:
    boxes = [
        ((20, 20, 50, 60), False),
        ((1, 20, 50, 60), True),
        ((20, 0.5, 50, 60), True),
        ((640 - 50, 20, 50, 60), True),
        ((20, 480 - 61, 50, 60), True),
        ((20, 480 - 63, 50, 60), False),
        ((-10, 20, 50, 60), True),
    ]
    people = [box_person(0, 1, box) for box, _ in boxes]
    for x, visibility in ((-3, 2), (640, 1), (-3, 0)):
        people.append(box_person(0, 1, (20, 20, 50, 60)))
        people[-1]["keypoints"][:3] = [x, 30, visibility]
    expected = [*(truncated for _, truncated in boxes), True, True, False]
    assert attributes_of(tmp_path, *people).truncated.tolist() == expected


def test_sizes_are_cocos_and_occlusion_is_the_share_of_hidden_keypoints(tmp_path: Path) -> None:
    people = [box_person(0, 1, (20, 20, 50, 60), 8, area=area) for area in (1000, 1024, 96**2, 96**2 + 1)]
    people[0]["keypoints"][2:9:3] = [1, 1, 1]
    attributes = attributes_of(tmp_path, *people)
    assert attributes.size.tolist() == [0, 1, 1, 2]
    assert attributes.hidden.tolist() == [3 / 8, 0, 0, 0] and attributes.labelled.tolist() == [8] * 4
