"""The data of the page: what its scripts read."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from posenet.diagnosis.result import (
    CORRECTIONS,
    OKS_THRESHOLDS,
    UNCORRECTED,
    Comparison,
    Counts,
    Diagnosis,
    Difference,
    FoundPerson,
    ImageDiagnosis,
    Slice,
    TruePerson,
)
from posenet.report.gallery import CROWDING, MISRANKED, ResultRanks, crowding_of, loss_of
from posenet.report.thumbnails import Thumbnail
from posenet.skeleton import Skeleton

KIND_ORDER = ("good", "jitter", "inversion", "swap", "miss")
"""The order of counts in the page."""
SHOWN_METRICS = ("AP", "AP50", "AP75", "APM", "APL", "AR")
SIZES = ("small", "medium", "large")
MAX_CHANGES = 60
"""Changed numbers and images of a comparison in the page."""
UNLABELLED = "."
"""Stands for the kind of a keypoint that is not labelled; kinds are their first letters."""

FACTORS = {
    "size": ("Size", "By the annotated area: small below 32², medium up to 96², large above."),
    "labelled keypoints": ("Labelled keypoints", "How many keypoints of the person are labelled."),
    "crowding": ("Crowding", "How many other people's boxes overlap with that of the person, IoU above 0.1."),
    "truncation": ("Truncation", "Whether the border of the image cuts the person off."),
    "occlusion": ("Occlusion", "Share of the labelled keypoints that are hidden."),
}
"""Title and explanation of each sensitivity."""


def build_page_data(
    diagnoses: Sequence[Diagnosis],
    comparison: Comparison | None,
    chosen: Sequence[int],
    thumbnails: Sequence[Thumbnail],
) -> dict[str, Any]:
    """Return what the page shows, ready for JSON.

    Args:
        chosen: indices of the images in the gallery.
        thumbnails: of these images.
    """
    first = diagnoses[0]
    skeleton = first.skeleton
    ranks = [ResultRanks.of(diagnosis) for diagnosis in diagnoses]
    return {
        "images": len(first.images),
        "people": first.num_people,
        "oks": OKS_THRESHOLDS,
        "keypoints": list(first.keypoints),
        "derived": [[skeleton.file_keypoints.index(end) for end in ends] for ends in skeleton.derived.values()],
        "edges": _edges(skeleton),
        "sizes": [[size, size.capitalize()] for size in SIZES],
        "crowdings": [[crowding, f"{crowding} overlapping"] for crowding in CROWDING],
        "runs": [_run(diagnosis, rank) for diagnosis, rank in zip(diagnoses, ranks)],
        "comparison": [] if comparison is None else [_difference(item) for item in comparison.differences],
        "gallery": [
            _image([diagnosis.images[index] for diagnosis in diagnoses], ranks, index, thumbnail)
            for index, thumbnail in zip(chosen, thumbnails)
        ],
    }


def _edges(skeleton: Skeleton) -> list[list[int]]:
    """The lines of a drawn person, as indices into the keypoints of the file followed by the derived ones."""
    points = [*skeleton.file_keypoints, *skeleton.derived]
    return [[points.index(a), points.index(b)] for a, b in skeleton.drawn or skeleton.parts]


def _run(diagnosis: Diagnosis, ranks: ResultRanks) -> dict[str, Any]:
    thresholds = {UNCORRECTED: diagnosis.ap_by_threshold, **diagnosis.corrected_by_threshold}
    return {
        "name": diagnosis.name,
        "results": diagnosis.num_results,
        "metrics": {name: diagnosis.metrics[name] for name in SHOWN_METRICS},
        "perfectGrouping": None if diagnosis.perfect_grouping is None else diagnosis.perfect_grouping["AP"],
        "counts": {kind: diagnosis.counts[kind] for kind in KIND_ORDER},
        "keypoints": [_counts(counts) for counts in diagnosis.keypoints.values()],
        "corrected": dict(diagnosis.corrected),
        "alone": dict(diagnosis.alone),
        "thresholds": {name: np.round(values, 4).tolist() for name, values in thresholds.items()},
        "precision": {
            name: np.rint(1000 * diagnosis.precision[name]).astype(int).tolist() for name in (UNCORRECTED, *CORRECTIONS)
        },
        "background": diagnosis.background_by_threshold.tolist(),
        "missed": diagnosis.missed_by_threshold.tolist(),
        "misranked": ranks.misranked,
        "sensitivity": [_factor(name, slices) for name, slices in diagnosis.sensitivity.items()],
    }


def _counts(counts: Counts) -> list[int]:
    return [int(counts[kind]) for kind in KIND_ORDER]


def _factor(name: str, slices: Sequence[Slice]) -> dict[str, Any]:
    label, explanation = FACTORS[name]
    in_gallery = name in ("size", "crowding")
    return {
        "label": label,
        "help": explanation,
        "filter": name,
        "groups": [
            {
                "label": group.name,
                "filter": group.name if in_gallery else None,
                "people": group.people,
                "AP": group.ap,
                "counts": _counts(group.counts),
                "missed": group.missed,
            }
            for group in slices
        ],
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "ap": difference.ap_difference,
        "interval": list(difference.interval),
        "better": difference.share_better,
        "resamples": difference.resamples,
        "changes": [asdict(change) for change in difference.changes],
        "images": [
            {"id": change.id, "before": change.before, "after": change.after}
            for change in difference.images[:MAX_CHANGES]
        ],
    }


def _image(
    images: Sequence[ImageDiagnosis], ranks: Sequence[ResultRanks], index: int, thumbnail: Thumbnail
) -> dict[str, Any]:
    """One image of the gallery with the results of every file."""
    first = images[0]
    return {
        "id": first.id,
        "file": first.file_name,
        "width": first.width,
        "height": first.height,
        "jpeg": base64.b64encode(thumbnail.jpeg).decode(),
        "note": thumbnail.note,
        "truth": [_true_person(person) for person in first.people],
        "ignored": [_rounded(box) for box in first.ignored_boxes],
        "runs": [
            {
                "loss": round(loss_of(image), 4),
                "missed": [number for number, person in enumerate(image.people) if person.missed],
                "people": [
                    _found_person(result, misranking >= MISRANKED)
                    for result, misranking in zip(image.results, rank.misrankings(index, len(image.results)))
                ],
            }
            for image, rank in zip(images, ranks)
        ],
    }


def _true_person(person: TruePerson) -> dict[str, Any]:
    return {
        "keypoints": _points(person.keypoints, person.keypoints[:, 2] > 0),
        "box": _rounded(person.box),
        "size": person.size,
        "crowding": crowding_of(person.crowding),
        "overlaps": person.crowding,
        "labelled": person.labelled,
        "truncated": bool(person.truncated),
    }


def _found_person(result: FoundPerson, misranked: bool) -> dict[str, Any]:
    found = result.keypoints[:, 2] > 0
    return {
        # Some files have a 0 in every third value.
        "keypoints": _points(result.keypoints, found if found.any() else ~found),
        "score": result.score,
        "oks": round(result.oks, 4),
        "truth": -1 if result.person is None else result.person,
        "kinds": "".join(UNLABELLED if kind is None else kind[0] for kind in result.kinds),
        "background": bool(result.background),
        "ignored": bool(result.ignored),
        "misranked": misranked,
    }


def _points(keypoints: np.ndarray, present: np.ndarray) -> list[list[float] | None]:
    """[x, y] of the keypoints that are present, None for the others."""
    points = np.round(keypoints[:, :2].astype(float), 1).tolist()
    return [point if there else None for point, there in zip(points, present.tolist())]


def _rounded(box: Sequence[float]) -> list[float]:
    return [round(float(value), 1) for value in box]
