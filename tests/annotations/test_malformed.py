"""Mutated annotation files are read in the normal form, or refused in one line, in bounded time and memory.

Every input is a function of its number alone.
"""

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from posenet.annotations.outlines import MAX_OUTLINE
from posenet.annotations.people import person_masks, read_dataset, read_split, select_main_persons
from posenet.annotations.reader import read_annotation_file
from posenet.inference.evaluation import compute_coco_metrics
from tests.helpers.drawn_data import document, person, read_people
from tests.helpers.malformed_inputs import mutate_bytes, mutate_tree, try_all

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")

RESULT = {"image_id": 1, "category_id": 1, "keypoints": [30.0, 40.0, 1.0] * 17, "score": 0.5}


def mutated(number: int) -> bytes:
    """Four people and a crowd on three images, mutated."""
    rng = np.random.default_rng((1, number))
    people = [person(i, 1 + i % 3, box=(10 + 5 * i, 20, 50, 60)) for i in range(4)]
    people[1]["segmentation"] = {"size": [120, 160], "counts": "PPo02N2M2N"}
    runs = {"size": [120, 160], "counts": [100, 50, 120 * 160 - 150]}
    tree = document([1, 2, 3], [*people, person(9, 2, labelled=0, iscrowd=1, segmentation=runs)])
    if number % 3 == 0:
        return mutate_bytes(rng, json.dumps(tree).encode())
    text = json.dumps(mutate_tree(rng, tree)).encode()
    return mutate_bytes(rng, text) if number % 3 == 1 else text


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.torture)], ids=["short", "long"])
def test_mutated_files_are_read_or_refused(tmp_path: Path, count: int) -> None:
    path = tmp_path / "annotations.json"

    def read(number: int) -> None:
        path.write_bytes(mutated(number))
        file = read_annotation_file(path, folder=tmp_path if number % 2 else None)
        if not file.adjustments.contradictions:
            again = read_annotation_file(path, document=json.loads(json.dumps(file.document)))
            assert not [one for one in again.adjustments if one.kind == "derived"]
            assert json.dumps(again.document) == json.dumps(file.document)
        split = read_split(path)
        if split.people and any(image.id == 1 for image in split.images):
            compute_coco_metrics([RESULT | {"category_id": split.category}], split)
        dataset = read_dataset(path)
        for image in dataset.images:
            people = dataset.people[image.id]
            select_main_persons(people)
            if image.height * image.width <= 2**22:
                masks = person_masks(people, image.height, image.width)
                assert all(mask.shape == (image.height, image.width) for mask in masks)

    findings = try_all(count, read)
    assert not findings.faults, findings.faults
    assert findings.counts["refused"] and findings.counts["accepted"]


def test_an_outline_that_goes_on_for_ever_is_left_out(tmp_path: Path) -> None:
    zigzag = [[0, 0, 60000, 0] * 500, [20, 20, 70, 20, 70, 80]]
    people = read_people(tmp_path, person(1, 1, segmentation=zigzag))
    assert people.outlines == [[zigzag[1]]] and MAX_OUTLINE < 60000 * 1000
    tracemalloc.start()
    person_masks(people, 120, 160)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
