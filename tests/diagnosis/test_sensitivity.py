"""People sliced by what may make them hard to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.diagnosis.diagnose import diagnose
from posenet.diagnosis.result import KINDS, Diagnosis, ImageDiagnosis, TruePerson
from tests.helpers.coco_results import coco_ap, people_of, perfect_results, plain_coco, random_results
from tests.helpers.drawn_data import HEIGHT, WIDTH
from tests.helpers.drawn_data import document as make_document
from tests.helpers.drawn_data import person as make_person


@pytest.fixture
def diagnosis(document: dict[str, Any], annotation_file: Path) -> Diagnosis:
    results = random_results(document, np.random.default_rng(0), per_image=10)
    return diagnose(annotation_file, results, progress=False)


def people_in_slice(diagnosis: Diagnosis, dimension: str, name: str) -> list[tuple[ImageDiagnosis, TruePerson]]:
    """The people of a slice, from what the diagnosis holds of each."""
    chosen = []
    for image in diagnosis.images:
        for person in image.people:
            value = {
                "size": person.size,
                "labelled keypoints": ["1-5", "6-10", "11-15", "16-17"][(person.labelled - 1) // 5],
                "crowding": "0" if not person.crowding else "1-2" if person.crowding < 3 else "3 or more",
                "truncation": "truncated" if person.truncated else "inside",
                "occlusion": ["none hidden", "up to 25 %", "25 to 50 %", "over 50 %"][
                    (person.hidden > 0) + (person.hidden > 0.25) + (person.hidden > 0.5)
                ],
            }[dimension]
            if value == name:
                chosen.append((image, person))
    return chosen


def test_each_dimension_holds_everybody_once(diagnosis: Diagnosis) -> None:
    assert list(diagnosis.sensitivity) == ["size", "labelled keypoints", "crowding", "truncation", "occlusion"]
    for slices in diagnosis.sensitivity.values():
        assert sum(part.people for part in slices) == diagnosis.num_people
        assert sum(part.missed for part in slices) == diagnosis.missed
        for kind in KINDS:
            assert sum(part.counts[kind] for part in slices) == diagnosis.counts[kind]


def test_slices_hold_their_people_and_the_kinds_of_their_keypoints(diagnosis: Diagnosis) -> None:
    for dimension, slices in diagnosis.sensitivity.items():
        for part in slices:
            chosen = people_in_slice(diagnosis, dimension, part.name)
            assert len(chosen) == part.people
            assert sum(person.missed for _, person in chosen) == part.missed
            kinds = [
                kind
                for image, person in chosen
                if person.result is not None
                for kind in image.results[person.result].kinds
            ]
            assert {kind: kinds.count(kind) for kind in KINDS} == part.counts
            assert (part.ap == -1) == (part.people == 0)


def test_the_ap_by_size_is_cocos(diagnosis: Diagnosis) -> None:
    by_size = {part.name: part.ap for part in diagnosis.sensitivity["size"]}
    assert by_size["medium"] == pytest.approx(diagnosis.metrics["APM"], abs=1e-9)
    assert by_size.get("large", -1) == pytest.approx(diagnosis.metrics["APL"], abs=1e-9)


def test_the_ap_of_a_slice_is_that_of_pycocotools_with_the_other_people_ignored(
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
    for name, part in ((part.name, part) for part in diagnosis.sensitivity["crowding"]):
        boxes = {(image.id, person.box) for image, person in people_in_slice(diagnosis, "crowding", name)}
        if not boxes:
            continue
        content = document | {"annotations": []}
        kept = []
        for entry in document["annotations"]:
            is_member = (entry["image_id"], tuple(map(float, entry["bbox"]))) in boxes
            content["annotations"].append(entry if is_member else entry | {"num_keypoints": 0})
        for result, person in zip(results, people):
            if (person["image_id"], tuple(map(float, person["bbox"]))) in boxes:
                kept.append(result)
        assert 0.2 < part.ap < 1
        assert part.ap == pytest.approx(coco_ap(plain_coco(content, kept)), abs=0.02)


def attributes_of(tmp_path: Path, *annotations: dict[str, Any]) -> list[TruePerson]:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document([1], list(annotations))))
    return list(diagnose(path, [], progress=False).images[0].people)


def test_crowding_counts_the_people_whose_boxes_overlap(tmp_path: Path) -> None:
    people = attributes_of(
        tmp_path,
        make_person(1, 1, (10, 10, 40, 40)),
        make_person(2, 1, (20, 10, 40, 40)),  # IoU 0.6 with the first
        make_person(3, 1, (30, 10, 40, 40), 0),  # without labelled keypoints, but there
        make_person(4, 1, (46, 10, 40, 40), iscrowd=1),  # a region, not a person
        make_person(5, 1, (66, 10, 40, 40)),  # overlaps a little: IoU 4 / 76 with the third
    )
    assert [person.crowding for person in people] == [2, 2, 0]


@pytest.mark.parametrize(
    ("box", "truncated"),
    [
        ((20, 20, 50, 60), False),
        ((1, 20, 50, 60), True),
        ((20, 0.5, 50, 60), True),
        ((WIDTH - 50, 20, 50, 60), True),
        ((20, HEIGHT - 61, 50, 60), True),
        ((20, HEIGHT - 63, 50, 60), False),
        ((-10, 20, 50, 60), True),
    ],
)
def test_truncated_boxes_touch_the_border(box: tuple[float, ...], truncated: bool, tmp_path: Path) -> None:
    [person] = attributes_of(tmp_path, make_person(1, 1, box))
    assert person.truncated == truncated


@pytest.mark.parametrize(("x", "visibility", "truncated"), [(-3, 2, True), (WIDTH, 1, True), (-3, 0, False)])
def test_labelled_keypoints_outside_the_image_are_truncated(
    x: float, visibility: int, truncated: bool, tmp_path: Path
) -> None:
    entry = make_person(1, 1)
    entry["keypoints"][:3] = [x, 30, visibility]
    [person] = attributes_of(tmp_path, entry)
    assert person.truncated == truncated


def test_occlusion_is_the_share_of_hidden_keypoints(tmp_path: Path) -> None:
    entry = make_person(1, 1, labelled=8)
    entry["keypoints"][2:9:3] = [1, 1, 1]
    [person] = attributes_of(tmp_path, entry)
    assert person.hidden == 3 / 8 and person.labelled == 8


@pytest.mark.parametrize(("area", "size"), [(1000, "small"), (1024, "medium"), (96**2, "medium"), (96**2 + 1, "large")])
def test_sizes_are_cocos(area: float, size: str, tmp_path: Path) -> None:
    [person] = attributes_of(tmp_path, make_person(1, 1, area=area))
    assert person.size == size
