"""People sliced by what may make them hard to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS
from tests.helpers.coco_results import make_document
from tests.helpers.drawn_data import person as box_person


def test_the_sizes_hold_everybody_once_and_have_cocos_ap(diagnosis: Diagnosis) -> None:
    assert sum(part.people for part in diagnosis.sizes) == diagnosis.num_people
    assert sum(part.missed for part in diagnosis.sizes) == diagnosis.missed
    for kind in KEYPOINT_KINDS:
        assert sum(part.counts[kind] for part in diagnosis.sizes) == diagnosis.counts[kind]
    by_size = {part.name: part.ap for part in diagnosis.sizes}
    assert by_size["medium"] == pytest.approx(diagnosis.metrics["APM"], abs=1e-9)
    assert by_size["large"] == pytest.approx(diagnosis.metrics["APL"], abs=1e-9)


def test_sizes_are_cocos(tmp_path: Path) -> None:
    areas = (1000, 1024, 96**2, 96**2 + 1)
    people = [box_person(0, 1, (20 + number, 20, 50, 60), 8, area=area) for number, area in enumerate(areas)]
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document(people)))
    diagnosis = diagnose(path, [], progress=False)
    assert [(part.name, part.people) for part in diagnosis.sizes] == [("small", 1), ("medium", 2), ("large", 1)]
