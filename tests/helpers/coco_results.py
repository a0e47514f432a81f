"""COCO results with known errors, made from annotations; and plain ``pycocotools`` to compare with."""

import contextlib
import copy
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pycocotools.coco import COCO as CocoApi
from pycocotools.cocoeval import COCOeval

from posenet.annotations.coco import COCO_CATEGORY
from posenet.skeleton import COCO, Skeleton
from tests.helpers.drawn_data import person as box_person

Result = dict[str, Any]

UPRIGHT = np.array([
    [0, -95], [4, -99], [-4, -99], [9, -96], [-9, -96], [18, -75], [-18, -75], [26, -45], [-26, -45], [28, -18],
    [-28, -18], [11, -15], [-11, -15], [12, 25], [-12, 25], [12, 65], [-12, 65],
], float)  # fmt: skip
"""(17, 2) keypoints of an upright person in the order of COCO's files, about the hips; the person is 164 high."""
FAR = 1e5
"""Pixels; nothing there resembles a person of an image."""
MAX_SHARE = 0.3
"""Largest share of a person's labelled keypoints that get errors, so that the person still matches at OKS 0.5."""


def make_result(image_id: int, keypoints: np.ndarray, score: float) -> Result:
    """An entry of a results file: a person with (17, 3) keypoints."""
    return {"image_id": image_id, "category_id": 1, "keypoints": keypoints.ravel().tolist(), "score": score}


def make_document(annotations: Iterable[dict[str, Any]], image_ids: Iterable[int] = (1,)) -> dict[str, Any]:
    """A data set of images of 640 by 480 pixels, whose annotations get the ids 1, 2, 3 ..."""
    images = [{"id": number, "file_name": f"{number:03d}.jpg", "height": 480, "width": 640} for number in image_ids]
    numbered = [entry | {"id": number} for number, entry in enumerate(annotations, 1)]
    return {"images": images, "annotations": numbered, "categories": [COCO_CATEGORY]}


def people_document(num_images: int) -> dict[str, Any]:
    """Annotations of up to six people in each image, of all sizes, with crowds and people without labels."""
    rng = np.random.default_rng(0)
    annotations = []
    for image_id in range(1, num_images + 1):
        for _ in range(rng.integers(7)):
            points = UPRIGHT * rng.uniform(0.3, 2) * rng.uniform(0.8, 1.2, UPRIGHT.shape)
            angle = rng.normal(0, 0.2)
            turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            points = points @ turn + rng.uniform((290, 310), (850, 670))  # all are inside their image
            box = (*points.min(axis=0).tolist(), *np.ptp(points, axis=0).tolist())
            visibility = rng.choice([0, 1, 2], 17, p=[0.15, 0.1, 0.75]) * (rng.random() > 0.1)
            points[visibility == 0] = 0
            changes = {"keypoints": np.column_stack([points, visibility]).ravel().tolist()}
            changes |= {"area": 0.6 * box[2] * box[3], "num_keypoints": int((visibility > 0).sum())}
            annotations.append(box_person(0, image_id, box, **changes))
        if rng.random() < 0.2:
            annotations.append(box_person(0, image_id, (100, 200, 300, 150), 0, iscrowd=1))
    document = make_document(annotations, range(1, num_images + 1))
    for image in document["images"]:
        image.update(height=1000, width=1200)
    return document


def people_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The annotated people with labelled keypoints."""
    return [entry for entry in document["annotations"] if entry["num_keypoints"] and not entry["iscrowd"]]


def perfect_results(document: Mapping[str, Any]) -> list[Result]:
    """A result for every labelled person, exactly as annotated, with different scores."""
    return [
        make_result(person["image_id"], np.array(person["keypoints"], float), round(0.9 - 1e-4 * number, 4))
        for number, person in enumerate(people_of(document))
    ]


def random_results(document: Mapping[str, Any], rng: np.random.Generator, per_image: int = 25) -> list[Result]:
    """Results of all kinds: near people and crowds, duplicates, background, equal scores, more than 20 in an image."""
    by_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in document["images"]}
    for entry in document["annotations"]:
        by_image[entry["image_id"]].append(entry)
    results = []
    for image in document["images"]:
        people = by_image[image["id"]]
        for _ in range(rng.integers(per_image + 1)):
            keypoints = rng.uniform(0, 1, (17, 3)) * (image["width"], image["height"], 1)
            if people and rng.random() < 0.8:
                person = people[rng.integers(len(people))]
                exact = np.array(person["keypoints"], float).reshape(17, 3)
                if person["num_keypoints"]:
                    exact[:, :2] += rng.normal(0, 0.15 * rng.random() * math.sqrt(person["area"]), (17, 2))
                    keypoints = exact
                else:
                    x, y, width, height = person["bbox"]
                    keypoints[:, :2] = (x, y) + rng.random((17, 2)) * (width, height)
            results.append(make_result(image["id"], keypoints, round(float(rng.random()), 1)))
    return results


@dataclass
class InjectedErrors:
    """Results with errors, and how many there are of each kind."""

    document: dict[str, Any]
    results: list[Result]
    keypoints: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of errors by kind and keypoint."""
    background: int = 0
    missed: int = 0
    touched: dict[int, set[int]] = field(default_factory=dict)
    """Keypoints with an error, by result."""

    @classmethod
    def start(cls, document: dict[str, Any]) -> "InjectedErrors":
        return cls(document, perfect_results(document))

    def count(self, kind: str) -> int:
        return sum(number for (found, _), number in self.keypoints.items() if found == kind)

    def add_keypoint_errors(self, kind: str, count: int, rng: np.random.Generator) -> None:
        """Give ``count`` keypoints of the results an error; all results must be there, in the order of the people."""
        people = people_of(self.document)
        for index in rng.permutation(17 * len(people)).tolist():
            row, k = divmod(index, 17)
            touched = self.touched.setdefault(row, set())
            is_full = len(touched) + 1 > MAX_SHARE * people[row]["num_keypoints"]
            if count == 0 or k in touched or is_full or people[row]["keypoints"][3 * k + 2] == 0:
                continue
            place = self._erroneous_place(kind, people, row, k, rng)
            if place is not None:
                self.results[row]["keypoints"][3 * k : 3 * k + 2] = place
                self.keypoints[kind, k] += 1
                touched.add(k)
                count -= 1
        assert count == 0, f"these annotations have no place for {count} more errors of kind {kind}"

    def _erroneous_place(
        self, kind: str, people: Sequence[dict[str, Any]], row: int, k: int, rng: np.random.Generator
    ) -> tuple[float, float] | None:
        person = people[row]
        others = [other for other in people if other["image_id"] == person["image_id"] and other is not person]
        x, y, _ = person["keypoints"][3 * k : 3 * k + 3]
        if kind == "miss":
            return x - FAR, y
        if kind == "jitter":
            distance = math.sqrt(-2 * math.log(0.7) * person["area"]) * 2 * COCO.sigmas[k]
            angle = rng.uniform(0, 2 * math.pi)
            place = x + distance * math.cos(angle), y + distance * math.sin(angle)
        else:
            source = k if kind == "swap" else mirror_of(COCO)[k]
            owner = person if kind == "inversion" else (others or [None])[0]
            if owner is None or owner["keypoints"][3 * source + 2] == 0:
                return None
            place = owner["keypoints"][3 * source], owner["keypoints"][3 * source + 1]
        return place if classify(place, k, person, others) == kind else None

    def remove_people(self, count: int, rng: np.random.Generator) -> None:
        """Remove results. Call this after adding errors of keypoints."""
        untouched = [row for row in range(len(self.results)) if not self.touched.get(row)]
        rows = set(rng.permutation(untouched)[:count].tolist())
        self.results = [result for row, result in enumerate(self.results) if row not in rows]
        self.missed += count

    def add_background(self, count: int, rng: np.random.Generator, score: float = 0.1) -> None:
        """Add results far away from everybody, in images with few people."""
        per_image = Counter(result["image_id"] for result in self.results)
        images = [image["id"] for image in self.document["images"] if per_image[image["id"]] <= 5]
        for number in range(count):
            xy = rng.uniform(FAR, 2 * FAR, (17, 2))
            keypoints = np.concatenate([xy, np.ones((17, 1))], axis=1)
            self.results.append(make_result(images[number % len(images)], keypoints, score))
        self.background += count


def mirror_of(skeleton: Skeleton) -> list[int]:
    """The index of the left or right counterpart of each keypoint of the file."""
    names = skeleton.file_keypoints
    twin = dict(skeleton.left_right) | {right: left for left, right in skeleton.left_right}
    return [names.index(twin.get(name, name)) for name in names]


def classify(place: tuple[float, float], k: int, person: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """The kind of a keypoint, one keypoint at a time as the definition says."""

    def similarity(owner: Mapping[str, Any], true: int) -> float:
        x, y, visibility = owner["keypoints"][3 * true : 3 * true + 3]
        if visibility == 0:
            return 0.0
        square = (place[0] - x) ** 2 + (place[1] - y) ** 2
        return math.exp(-square / (2 * owner["area"] * (2 * COCO.sigmas[true]) ** 2))

    mirrored = mirror_of(COCO)[k]
    right = similarity(person, k)
    inverted = similarity(person, mirrored)
    swapped = max((similarity(other, true) for other in others for true in (k, mirrored)), default=0.0)
    best = max(right, inverted, swapped)
    if best < 0.5:
        return "miss"
    if right == best:
        return "good" if best >= 0.85 else "jitter"
    return "inversion" if inverted == best else "swap"


def plain_coco(
    document: Mapping[str, Any],
    results: Sequence[Result],
    thresholds: Sequence[float] | None = None,
    sigmas: Sequence[float] | None = None,
    people: Callable[[dict[str, Any]], bool] | None = None,
) -> COCOeval:
    """``pycocotools`` as its users call it.

    Args:
        thresholds: OKS thresholds instead of COCO's.
        people: which annotations to keep.
    """
    content = copy.deepcopy(dict(document))
    if people is not None:
        content["annotations"] = [entry for entry in content["annotations"] if people(entry)]
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
        truth = CocoApi()
        truth.dataset = content
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(copy.deepcopy(list(results))), "keypoints")
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        if thresholds is not None:
            evaluation.params.iouThrs = np.array(thresholds)
        evaluation.evaluate()
        evaluation.accumulate()
        if thresholds is None:
            evaluation.summarize()
    return evaluation


def coco_ap(evaluation: COCOeval) -> float:
    """AP over all thresholds of the evaluation, for people of any size."""
    precision = evaluation.eval["precision"][:, :, 0, 0, 0]
    return float(precision[precision > -1].mean()) if (precision > -1).any() else -1.0
