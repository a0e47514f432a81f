"""Choose the images of the gallery: the worst, and the worst of each kind of error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

import numpy as np

from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS, LOCALISATION

MAX_IMAGES = 400
"""Images in the gallery."""
WORST_IMAGES = 150
"""Of these, the images that cost most. The others have most errors of each kind."""


def image_losses(diagnosis: Diagnosis) -> np.ndarray:
    """(images,) what each image costs: the sum of 1 - OKS over its people."""
    truth = diagnosis.matched.truth
    people = np.bincount(truth.image[truth.people], minlength=len(diagnosis.images))
    return np.asarray(people - diagnosis.image_oks())


def choose_images(diagnosis: Diagnosis) -> list[int]:
    """Return indices of ``Diagnosis.images``, at most ``MAX_IMAGES``, in ascending order."""
    worst = _worst_first(image_losses(diagnosis))[:WORST_IMAGES]
    rankings = map(_worst_first, _count_errors(diagnosis))
    worst_of_kinds = chain.from_iterable(zip_longest(*rankings))  # the first of each, then the second of each ...
    # A dictionary keeps the first place of each image. Shorter rankings end with None.
    candidates = dict.fromkeys(chain(worst, worst_of_kinds, range(len(diagnosis.images))))
    return sorted([index for index in candidates if index is not None][:MAX_IMAGES])


def _count_errors(diagnosis: Diagnosis) -> Iterator[np.ndarray]:
    """How often each kind of error is in each image, (images,)."""
    truth, results, kinds = diagnosis.matched.truth, diagnosis.matched.results, diagnosis.matched.kinds
    num_images = len(diagnosis.images)
    yield np.bincount(truth.image[diagnosis.outcome.missed[0]], minlength=num_images)
    yield np.bincount(results.image[diagnosis.outcome.background[0]], minlength=num_images)
    for kind in LOCALISATION:
        rows, _ = np.nonzero(kinds == KEYPOINT_KINDS.index(kind))
        yield np.bincount(results.image[rows], minlength=num_images)


def _worst_first(severity: np.ndarray) -> list[int]:
    """Indices of the images in which there is something, the worst first."""
    order = np.argsort(-severity, kind="stable")
    return list(order[: np.count_nonzero(severity > 0)].tolist())
