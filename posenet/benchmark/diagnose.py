"""Speed and memory of a diagnosis of as many images, people and results as COCO's validation split has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.reading import Split
from posenet.benchmark.machine import peak_memory_mib
from posenet.benchmark.report import Report
from posenet.benchmark.targets import standing_people
from posenet.diagnosis.compare import compare
from posenet.diagnosis.diagnose import diagnose_results
from posenet.diagnosis.results_file import parse_results
from posenet.inference.coco_evaluation import compute_coco_metrics
from posenet.skeleton import COCO

SIZE = (480, 640)
"""Height and width of every image."""
_BACKGROUND_SHARE = 0.3
"""Share of the results that belong to nobody."""
_T = TypeVar("_T")


def measure_diagnose(num_images: int, num_people: int, results_per_image: int, seed: int) -> Report:
    """Diagnose drawn people and two sets of disturbed results, and compare the sets.

    One run each, because a run takes seconds. The baseline is one evaluation by ``pycocotools``, which is a part of the
    diagnosis.
    """
    rng = np.random.default_rng(seed)
    split = draw_split(rng, num_images, num_people)
    files = [draw_results(rng, split, results_per_image) for _ in range(2)]
    seconds: dict[str, float] = {}

    def timed(name: str, task: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        result = task()
        seconds[name] = time.perf_counter() - started
        return result

    timed("pycocotools", lambda: compute_coco_metrics(files[0], split))
    parsed = timed("check the results", lambda: parse_results(files[0], split, COCO, "results"))
    first = timed("diagnose", lambda: diagnose_results(parsed, split, COCO, "first"))
    second = diagnose_results(parse_results(files[1], split, COCO, "results"), split, COCO, "second")
    timed("compare two", lambda: compare([first, second]))
    peak_mib = peak_memory_mib()
    return Report(
        title=f"diagnose: {num_images} images, {len(split.people)} people, {len(files[0])} results",
        header=("part", "seconds"),
        rows=list(seconds.items()),
        numbers={
            "diagnose_s": seconds["check the results"] + seconds["diagnose"],
            "pycocotools_s": seconds["pycocotools"],
            "compare_s": seconds["compare two"],
            "peak_mib": peak_mib,  # null on Windows
            "images": num_images,
            "people": len(split.people),
            "results": len(files[0]),
            "ap": first.ap,
        },
        notes=[f"peak memory of this process {peak_mib:.0f} MiB, with both sets of results as Python objects"]
        if peak_mib
        else [],
    )


def draw_split(rng: np.random.Generator, num_images: int, num_people: int) -> Split:
    """People in random images, with some keypoints not labelled and some hidden."""
    images = [CocoImage(number, f"{number:012d}.jpg", *SIZE) for number in range(1, num_images + 1)]
    people: list[dict[str, Any]] = []
    counts = np.bincount(rng.integers(num_images, size=num_people), minlength=num_images)
    for image, count in zip(images, counts.tolist()):
        for joints in COCO.to_file_order(standing_people(rng, count, SIZE)).astype(float):
            joints[:, 2] = rng.choice([0, 1, 2], len(joints), p=[0.3, 0.1, 0.6])
            joints[0, 2] = 2
            x, y = joints[:, :2].min(axis=0).tolist()
            width, height = np.ptp(joints[:, :2], axis=0).tolist()
            person = {
                "image_id": image.id,
                "category_id": 1,
                "keypoints": joints.ravel().tolist(),
                "num_keypoints": int((joints[:, 2] > 0).sum()),
                "bbox": [x, y, width, height],
                "area": 0.6 * width * height,
                "iscrowd": 0,
            }
            people.append(person)
    return Split(images, 1, people, frozenset({1}))


def draw_results(rng: np.random.Generator, split: Split, per_image: int) -> list[dict[str, Any]]:
    """Results of every image: its people, disturbed more or less, and results that belong to nobody."""
    people_of: dict[int, list[dict[str, Any]]] = {image.id: [] for image in split.images}
    for person in split.people:
        people_of[person["image_id"]].append(person)
    results = []
    for image_id, people in people_of.items():
        for _ in range(per_image):
            if people and rng.random() > _BACKGROUND_SHARE:
                person = people[rng.integers(len(people))]
                error = rng.exponential(0.05)
                keypoints = np.array(person["keypoints"]).reshape(-1, 3)
                keypoints[:, :2] += rng.normal(0, error * np.sqrt(person["area"]), (len(keypoints), 2))
                score = float(rng.random() - error)
            else:
                [keypoints] = COCO.to_file_order(standing_people(rng, 1, SIZE)).astype(float)
                keypoints[:, :2] += rng.normal(0, SIZE[0] / 4, 2)
                score = float(0.7 * rng.random())
            entry = {"image_id": image_id, "category_id": 1, "keypoints": keypoints.ravel().tolist(), "score": score}
            results.append(entry)
    return results
