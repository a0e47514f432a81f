"""A small data set of upright people, with results that have one example of every kind of error."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.skeleton import COCO
from posenet.skeleton.oks import similar_distance
from tests.helpers.coco_results import UPRIGHT, Result, make_result
from tests.helpers.drawn_data import person as box_person

WIDTH = 640
HEIGHT = 400
AREAS = {"small": 900.0, "medium": 5000.0, "large": 20000.0}
NOSE, LEFT_WRIST, RIGHT_WRIST = (COCO.file_names.index(name) for name in ("nose", "left_wrist", "right_wrist"))

Document = dict[str, Any]


def small_data(names: Sequence[str] = ()) -> tuple[Document, list[Result]]:
    """Annotations and results: jitter of noses and an inversion (image 11), a swap in a crowd (12), misses of a small
    person (13), a missed person and two results on nobody (14), and a perfect result (15).

    ``names`` are those of the image files, instead of numbers.
    """
    images = [
        {"id": 11 + index, "file_name": f"{11 + index:012d}.jpg", "height": HEIGHT, "width": WIDTH}
        for index in range(5)
    ]
    for image, name in zip(images, names):
        image["file_name"] = name
    document = {"images": images, "annotations": [], "categories": [COCO_CATEGORY]}
    results = []

    def add_person(image: int, x: float, size: str = "large") -> tuple[dict[str, Any], np.ndarray]:
        """The person and the (17, 3) keypoints of its result, which are exact until they are changed."""
        factor = {"small": 0.4, "medium": 1.0, "large": 1.6}[size]
        points = UPRIGHT * factor + (x, 220)
        keypoints = np.column_stack([points, np.full(17, 2.0)])
        left, top = points.min(axis=0)
        width, height = np.ptp(points, axis=0)
        box = (left, top, width, height)
        changes = {"area": AREAS[size], "keypoints": keypoints.ravel().tolist()}
        person = box_person(len(document["annotations"]) + 1, image, box, **changes)
        document["annotations"].append(person)
        return person, keypoints.copy()

    def add_result(image: int, keypoints: np.ndarray) -> None:
        results.append(make_result(image, keypoints, round(0.9 - 0.05 * len(results), 2)))

    jitter = similar_distance(np.array(0.7), np.array(AREAS["large"]), np.array(COCO.sigmas[NOSE]))
    for x in (150, 420):
        _, found = add_person(11, x)
        found[NOSE, 0] += jitter
        if x == 420:
            found[LEFT_WRIST] = found[RIGHT_WRIST]
        add_result(11, found)
    crowd = [add_person(12, x)[1] for x in (150, 170, 190, 210)]
    crowd[0][LEFT_WRIST] = crowd[3][LEFT_WRIST]
    for found in crowd:
        add_result(12, found)
    _, found = add_person(13, 300, "small")
    found[:8, :2] += (200, -100)
    add_result(13, found)
    add_person(14, 300)
    for x in (80, 560):
        add_result(14, np.column_stack([UPRIGHT * 0.5 + (x, 330), np.ones(17)]))
    _, found = add_person(15, 300, "medium")
    add_result(15, found)
    return document, results


def diagnose_data(document: Document, results: Sequence[Result], folder: Path, name: str = "results.json") -> Diagnosis:
    """Diagnose results for annotations, which are written into a folder."""
    path = folder / "annotations.json"
    path.write_text(json.dumps(document))
    return diagnose(path, list(results), name=name, progress=False)


def small_diagnosis(folder: Path, names: Sequence[str] = ()) -> Diagnosis:
    return diagnose_data(*small_data(names), folder)
