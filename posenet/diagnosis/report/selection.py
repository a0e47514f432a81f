"""Choose the images of the gallery: the worst, and the worst of each kind of error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from posenet.diagnosis.compare import Comparison
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.kinds import KEYPOINT_KINDS, LOCALISATION

MAX_IMAGES = 400
"""Images in the gallery."""
RANKED_IMAGES = 250
"""Of these, images that are the worst, the worst of a kind of error, or changed most. The others are the worst for a
keypoint, a size or a crowding, so that these filters find images too."""
MAX_POINTS = 230_000
"""Keypoints of all people in the gallery, which take about 35 bytes each: 8 MB. COCO's 17 keypoints and 20 results in
each of 400 images are 150,000."""
CROWDING = ("0", "1-2", "3 or more")
"""Numbers of overlapping people, as the slices name them too."""


def crowding_of(overlapping: int) -> str:
    """The one of ``CROWDING`` that a number of overlapping people belongs to."""
    return CROWDING[(overlapping > 0) + (overlapping > 2)]


def image_losses(diagnosis: Diagnosis) -> np.ndarray:
    """(images,) what each image costs: the sum of 1 - OKS over its people."""
    truth = diagnosis.matched.truth
    people = np.bincount(truth.image[truth.people], minlength=len(diagnosis.images))
    return np.asarray(people - diagnosis.image_oks())


def choose_images(diagnoses: Sequence[Diagnosis], comparison: Comparison | None) -> list[int]:
    """Return indices of ``Diagnosis.images``, at most ``MAX_IMAGES``, in ascending order."""
    overall = [_worst_first(severity) for diagnosis in diagnoses for severity in _severities(diagnosis)]
    detailed = [_worst_first(severity) for diagnosis in diagnoses for severity in _detailed_severities(diagnosis)]
    if comparison is not None:
        position = {image.id: index for index, image in enumerate(diagnoses[0].images)}
        overall += [[position[change.id] for change in difference.images] for difference in comparison.differences]
    everybody = [range(len(diagnoses[0].images))]
    num_points = _count_points(diagnoses)
    chosen: set[int] = set()
    points_left = MAX_POINTS
    for rankings, limit in ((overall, RANKED_IMAGES), (detailed, MAX_IMAGES), (everybody, MAX_IMAGES)):
        for index in _in_turn(rankings):
            if len(chosen) < limit and index not in chosen and num_points[index] <= points_left:
                chosen.add(index)
                points_left -= num_points[index]
    return sorted(chosen)


def _severities(diagnosis: Diagnosis) -> list[np.ndarray]:
    """How bad each image is, (images,), for all that it costs and for each kind of error."""
    matched = diagnosis.matched
    # Wrong results with high scores cost most: the first counts twice as much as the last.
    rank = np.empty(len(matched.results))
    rank[np.argsort(-matched.results.scores, kind="stable")] = np.linspace(0, 1, len(rank))
    return [
        image_losses(diagnosis),
        _sum_of(diagnosis, matched.truth.image, diagnosis.outcome.missed[0]),
        _sum_of(diagnosis, matched.results.image, diagnosis.outcome.background[0] * (1 - rank / 2)),
        _sum_of(diagnosis, matched.results.image, diagnosis.misranking * diagnosis.is_misranked),
        *(_count_kind(diagnosis, kind, slice(None)) for kind in LOCALISATION),
    ]


def _detailed_severities(diagnosis: Diagnosis) -> list[np.ndarray]:
    """How bad each image is, (images,), for each kind of error at each keypoint, and for each size and crowding."""
    truth = diagnosis.matched.truth
    loss = np.where(truth.people, 1 - diagnosis.person_oks, 0)
    groups = diagnosis.attributes.groups(truth.keypoints.shape[1])
    members = [*groups["size"].values(), *groups["crowding"].values()]
    keypoints = range(truth.keypoints.shape[1])
    return [
        *(_sum_of(diagnosis, truth.image, loss * is_member) for is_member in members),
        *(_count_kind(diagnosis, kind, slice(k, k + 1)) for kind in LOCALISATION for k in keypoints),
    ]


def _count_kind(diagnosis: Diagnosis, kind: str, keypoints: slice) -> np.ndarray:
    """(images,) how many of some keypoints are of a kind."""
    is_kind = diagnosis.matched.kinds[:, keypoints] == KEYPOINT_KINDS.index(kind)
    return _sum_of(diagnosis, diagnosis.matched.results.image, is_kind.sum(axis=1))


def _sum_of(diagnosis: Diagnosis, image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(images,) sum of the values of the rows in each image."""
    return np.bincount(image, weights=values, minlength=len(diagnosis.images))


def _worst_first(severity: np.ndarray) -> list[int]:
    """Indices of the images in which there is something, the worst first."""
    order = np.argsort(-severity, kind="stable")
    return list(order[: np.count_nonzero(severity > 0)].tolist())


def _in_turn(rankings: Sequence[Sequence[int]]) -> Iterable[int]:
    """The first of each ranking, then the second of each ..."""
    return (index for row in zip_longest(*rankings) for index in row if index is not None)


def _count_points(diagnoses: Sequence[Diagnosis]) -> np.ndarray:
    """(images,) number of keypoints in each image: those of its people, and those of the results of all files."""
    truth = diagnoses[0].matched.truth
    rows = [truth.image[truth.people], *(diagnosis.matched.results.image for diagnosis in diagnoses)]
    people = np.bincount(np.concatenate(rows), minlength=len(diagnoses[0].images))
    return np.asarray(people * truth.keypoints.shape[1])
