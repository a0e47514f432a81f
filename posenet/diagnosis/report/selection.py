"""Choose the images of the gallery: the worst, and the worst of each kind of error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from posenet.diagnosis.compare import Difference
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.kinds import KEYPOINT_KINDS, LOCALISATION

MAX_IMAGES = 400
"""Images in the gallery."""
WORST_IMAGES = 150
"""Of these, the images that cost most. The others are the worst for each kind of error, also at each keypoint, for each
size and each crowding, and those that changed most, so that every filter finds images."""
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


def choose_images(diagnoses: Sequence[Diagnosis], differences: Sequence[Difference]) -> list[int]:
    """Return indices of ``Diagnosis.images``, at most ``MAX_IMAGES``, in ascending order."""
    worst = [_worst_first(image_losses(diagnosis)) for diagnosis in diagnoses]
    rankings = [_worst_first(severity) for diagnosis in diagnoses for severity in _severities(diagnosis)]
    position = {image.id: index for index, image in enumerate(diagnoses[0].images)}
    rankings += [[position[change.id] for change in difference.images] for difference in differences]
    everybody = [range(len(diagnoses[0].images))]
    chosen: set[int] = set()
    for lists, limit in ((worst, WORST_IMAGES), (rankings, MAX_IMAGES), (worst, MAX_IMAGES), (everybody, MAX_IMAGES)):
        for index in _in_turn(lists):
            if len(chosen) < limit:
                chosen.add(index)
    return sorted(chosen)


def _severities(diagnosis: Diagnosis) -> list[np.ndarray]:
    """How bad each image is, (images,), for each kind of error, for each at each keypoint, and for groups of people."""
    truth, results, kinds = diagnosis.matched.truth, diagnosis.matched.results, diagnosis.matched.kinds
    # Wrong results with high scores cost most: the first counts twice as much as the last.
    rank = np.empty(len(results))
    rank[np.argsort(-results.scores, kind="stable")] = np.linspace(0, 1, len(rank))
    loss = np.where(truth.people, 1 - diagnosis.person_oks, 0)
    groups = diagnosis.attributes.groups(kinds.shape[1])
    is_kind = [kinds == KEYPOINT_KINDS.index(kind) for kind in LOCALISATION]
    per_person = [diagnosis.outcome.missed[0]]
    per_person += [loss * members for name in ("size", "crowding") for members in groups[name].values()]
    per_result = [diagnosis.outcome.background[0] * (1 - rank / 2)]
    per_result += [is_wrong.sum(axis=1) for is_wrong in is_kind]
    per_result += [is_wrong[:, k] for is_wrong in is_kind for k in range(kinds.shape[1])]
    return [
        *(_sum_of(diagnosis, truth.image, values) for values in per_person),
        *(_sum_of(diagnosis, results.image, values) for values in per_result),
    ]


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
