"""Diagnoses made by hand, for tests of what shows them: people walking in a row, and results with chosen errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from posenet.diagnosis.result import (
    CORRECTIONS,
    KINDS,
    RECALLS,
    UNCORRECTED,
    Change,
    Comparison,
    Counts,
    Diagnosis,
    Difference,
    FoundPerson,
    ImageChange,
    ImageDiagnosis,
    Slice,
    TruePerson,
)
from posenet.skeleton import COCO

UPRIGHT = np.array([
    [0, -95], [4, -99], [-4, -99], [9, -96], [-9, -96], [18, -75], [-18, -75], [26, -45], [-26, -45], [28, -18],
    [-28, -18], [11, -15], [-11, -15], [12, 25], [-12, 25], [12, 65], [-12, 65],
], float)  # fmt: skip
"""(17, 2) keypoints of an upright person in the order of COCO's files, about the hips; the person is 164 high."""
WIDTH = 640
HEIGHT = 400
SIZES = ("small", "medium", "large")
ALONE = (0.2, 0.04, 0.1, 0.25, 0.05, 0.06, 0.1)
"""What the correction of each kind alone gains, as a share of what is missing to an AP of 1; jitter gains most."""


def true_person(x: float, *, size: str = "large", crowding: int = 0, missed: bool = False) -> TruePerson:
    """A person at ``x`` with all keypoints visible, matched by the result of the same index unless ``missed``."""
    factor = {"small": 0.4, "medium": 1.0, "large": 1.6}[size]
    points = UPRIGHT * factor + (x, 220)
    left, top = points.min(axis=0)
    width, height = np.ptp(points, axis=0)
    return TruePerson(
        keypoints=np.column_stack([points, np.full(17, 2)]),
        box=(float(left), float(top), float(width), float(height)),
        area=float(width * height),
        size=size,
        labelled=17,
        crowding=crowding,
        truncated=False,
        hidden=0.0,
        result=None,
        oks=0.0,
        missed=missed,
    )


def image_of(
    number: int, people: Sequence[TruePerson], errors: Sequence[dict[int, str]], *, name: str = "", background: int = 0
) -> ImageDiagnosis:
    """An image with one result for each person that is not missed, the keypoints in ``errors`` wrong in that way.

    Args:
        errors: for each person, from keypoint to kind of error.
        background: number of results that match nobody.
    """
    truths = []
    results = []
    for person, wrong in zip(people, errors):
        if person.missed:
            truths.append(person)
            continue
        kinds = tuple(wrong.get(keypoint, "good") for keypoint in range(17))
        oks = 1 - len(wrong) / 17
        truths.append(replace(person, result=len(results), oks=oks))
        keypoints = person.keypoints.astype(float).copy()
        for keypoint, kind in wrong.items():
            keypoints[keypoint, :2] += {"jitter": 9, "inversion": -25, "swap": 60, "miss": (40, -60)}[kind]
        score = 0.9 - 0.05 * len(results)
        results.append(
            FoundPerson(keypoints, score, len(truths) - 1, oks, oks, kinds, background=oks < 0.5, ignored=False)
        )
    for extra in range(background):
        keypoints = np.column_stack([UPRIGHT * 0.5 + (80 + 150 * extra, 330), np.ones(17)])
        results.append(
            FoundPerson(keypoints, 0.1 - 0.01 * extra, None, 0.0, 0.0, (None,) * 17, background=True, ignored=False)
        )
    return ImageDiagnosis(
        id=number, file_name=name or f"{number:012d}.jpg", width=WIDTH, height=HEIGHT, people=truths, results=results,
        ignored_boxes=[(500.0, 20.0, 100.0, 60.0)] if background else [],
    )  # fmt: skip


def diagnosis_of(images: Sequence[ImageDiagnosis], *, name: str = "results.json", ap: float = 0.4) -> Diagnosis:
    """A diagnosis whose counts are those of the images and whose APs are made up, rising from ``ap`` to 1."""
    keypoints = {name: dict.fromkeys(KINDS, 0) for name in COCO.file_names}
    for image in images:
        for result in image.results:
            for keypoint, kind in zip(COCO.file_names, result.kinds):
                if kind is not None:
                    keypoints[keypoint][kind] += 1
    counts = {kind: sum(one[kind] for one in keypoints.values()) for kind in KINDS}
    shares = np.cumsum([0.25, 0.05, 0.1, 0.2, 0.1, 0.12, 0.18])
    corrected = {kind: float(ap + (1 - ap) * share) for kind, share in zip(CORRECTIONS, shares)}
    strictness = np.linspace(1.2, 0.55, 10)
    by_threshold = {kind: np.minimum(value * strictness, 1) for kind, value in corrected.items()}
    by_threshold["missed"] = np.ones(10)
    uncorrected = np.minimum(ap * strictness, 1)
    recalls = np.array(RECALLS)
    precision = {
        stage: np.clip(1.6 * values[:, None] * (1.2 - recalls) ** 0.6 * (recalls < np.sqrt(values)[:, None]), 0, 1)
        for stage, values in {UNCORRECTED: uncorrected, **by_threshold}.items()
    }
    precision["missed"] = np.ones((10, 101))
    people = [person for image in images for person in image.people]
    return Diagnosis(
        name=name,
        skeleton=COCO,
        metrics={"AP": ap, "AP50": ap + 0.25, "AP75": ap + 0.05, "APM": ap - 0.1, "APL": ap + 0.1, "AR": ap + 0.08}
        | {"AR50": ap + 0.3, "AR75": ap + 0.1, "ARM": ap, "ARL": ap + 0.2},
        ap_by_threshold=uncorrected,
        counts=counts,
        keypoints=keypoints,
        corrected=corrected,
        alone={kind: ap + (1 - ap) * share for kind, share in zip(CORRECTIONS, ALONE)},
        corrected_by_threshold=by_threshold,
        alone_by_threshold=by_threshold,
        precision=precision,
        background_by_threshold=np.linspace(0.5, 1.5, 10).astype(int) + sum(
            result.background for image in images for result in image.results
        ),
        missed_by_threshold=np.arange(10) + sum(person.missed for person in people),
        sensitivity={
            "size": [_slice(size, people, counts, ap) for size in SIZES],
            "labelled keypoints": [_slice(group, people, counts, ap) for group in ("1-5", "6-10", "11-17")],
            "crowding": [_slice(group, people, counts, ap) for group in ("0", "1-2", "3 or more")],
            "truncation": [_slice(group, people, counts, ap) for group in ("inside", "truncated")],
            "occlusion": [_slice(group, people, counts, ap) for group in ("none", "up to half", "more")],
        },
        images=images,
    )  # fmt: skip


def _slice(name: str, people: Sequence[TruePerson], counts: Counts, ap: float) -> Slice:
    return Slice(name=name, people=len(people), ap=ap, counts=counts, missed=1)


def small_diagnosis(name: str = "results.json", *, ap: float = 0.4, better: bool = False) -> Diagnosis:
    """Five images: jitter of noses, an inversion of wrists, a swap in a crowd, misses, nobody found, a perfect one."""
    left_wrist = COCO.file_names.index("left_wrist")
    images = [
        image_of(11, [true_person(150), true_person(420)], [{0: "jitter"}, {0: "jitter", left_wrist: "inversion"}]),
        image_of(12, [true_person(150, crowding=3), true_person(200, crowding=3)], [{left_wrist: "swap"}, {}]),
        image_of(13, [true_person(300, size="small")], [{} if better else dict.fromkeys(range(8), "miss")]),
        image_of(14, [true_person(300, missed=True)], [{}], background=2),
        image_of(15, [true_person(300, size="medium")], [{}]),
    ]
    return diagnosis_of(images, name=name, ap=ap)


def two_runs() -> tuple[list[Diagnosis], Comparison]:
    """Two results files, of which the second finds the person of image 13 better, and their comparison."""
    before = small_diagnosis("before.json")
    after = small_diagnosis("after.json", ap=0.45, better=True)
    change = ImageChange(13, before.images[2].file_name, before.images[2].people[0].oks, 1.0)
    difference = Difference(
        baseline="before.json",
        name="after.json",
        ap_difference=0.05,
        interval=(0.01, 0.09),
        share_better=0.99,
        resamples=1000,
        changes=[
            Change("metric", "AP", 0.4, 0.45, improved=True),
            Change("metric", "APM", 0.35, 0.3, improved=False),
            Change("cost", "miss", 0.2, 0.15, improved=True),
            Change("keypoint", "nose", 0.8, 0.7, improved=False),
            Change("size", "small", 0.1, 0.3, improved=True),
        ],
        images=[change],
    )
    return [before, after], Comparison(["before.json", "after.json"], [difference])
