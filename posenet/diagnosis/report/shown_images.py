"""Choose the images of the gallery: the worst, and the worst of each kind of error."""

from __future__ import annotations

import numpy as np

from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS, LOCALISATION

MAX_IMAGES = 400
"""Images in the gallery."""


def image_losses(diagnosis: Diagnosis) -> np.ndarray:
    """(images,) what each image costs: the sum, over its people, of 1 - OKS with their results at OKS 0.1."""
    matched, truth = diagnosis.matched, diagnosis.matched.truth
    is_match = matched.pairs.person == matched.person[matched.pairs.result]
    oks = np.zeros(len(truth))
    oks[matched.pairs.person[is_match]] = matched.oks[is_match]
    num_images = len(diagnosis.images)
    people = np.bincount(truth.image[truth.people], minlength=num_images)
    return np.asarray(people - np.bincount(truth.image, weights=oks, minlength=num_images))


def choose_images(diagnosis: Diagnosis) -> list[int]:
    """Return indices of ``Diagnosis.images``, at most ``MAX_IMAGES``, in ascending order.

    First those that rank highest by what they cost or by the number of their errors of one kind.
    """
    severities = np.array([image_losses(diagnosis), *_count_errors(diagnosis)])
    ranks = np.argsort(np.argsort(-severities, kind="stable")).astype(float)
    ranks[severities <= 0] = np.inf
    return sorted(np.argsort(ranks.min(axis=0), kind="stable")[:MAX_IMAGES].tolist())


def _count_errors(diagnosis: Diagnosis) -> list[np.ndarray]:
    """How often each kind of error is in each image, (images,)."""
    matched, outcome = diagnosis.matched, diagnosis.outcome
    images = [matched.truth.image[outcome.missed[0]], matched.results.image[outcome.background[0]]]
    for kind in LOCALISATION:
        rows, _ = np.nonzero(matched.kinds == KEYPOINT_KINDS.index(kind))
        images.append(matched.results.image[rows])
    return [np.bincount(rows, minlength=len(diagnosis.images)) for rows in images]
