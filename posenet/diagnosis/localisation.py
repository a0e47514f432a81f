"""Localisation errors: what every keypoint of a matched result is, and where it would be without the error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenet.diagnosis.matching import Found, Pairs, Truth, similarity
from posenet.diagnosis.result import KINDS
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import twins

MATCH_OKS = 0.1
"""A result with at least this OKS has a person whose keypoints it is compared with."""
GOOD_SIMILARITY = 0.85
"""A keypoint at least as similar to the right one is good: people who annotate differ as much."""
MIN_SIMILARITY = 0.5
"""A keypoint less similar to every true one is a miss."""
UNLABELLED = -1
"""Kind of the keypoints that cannot be judged; the others are indices into ``KINDS``."""
_GOOD, _JITTER, _INVERSION, _SWAP, _MISS = range(len(KINDS))
_MARGIN = 1e-9
"""Corrected keypoints are nearer by this share of the distance, so that no OKS is rounded below a threshold."""


def mirror_indices(skeleton: Skeleton) -> np.ndarray:
    """(F,) index of the left or right counterpart of every keypoint of the annotation file; else its own."""
    mirror = twins(skeleton.left_right)
    names = skeleton.file_keypoints
    return np.array([names.index(mirror[name]) if mirror.get(name) in names else k for k, name in enumerate(names)])


def classify_keypoints(
    found: Found, truth: Truth, pairs: Pairs, person: np.ndarray, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """Compare the keypoints of matched results with those of all people of the image.

    Each is compared with the same and with the mirrored keypoint of the matched person, and with both of every other
    person. Only labelled keypoints count. The most similar one decides; of equal ones the right one.

    Args:
        person: (N,) the matched annotation of every result, -1 for none.

    Returns:
        (N, F) index into ``KINDS``, or ``UNLABELLED`` where there is no match or no label; and (N, F) the highest
        similarity, 0 where no keypoint is labelled.
    """
    sigmas = np.array(skeleton.sigmas)
    mirror = mirror_indices(skeleton)
    rows = np.flatnonzero((person[pairs.result] >= 0) & ~truth.crowd[pairs.truth])
    result, other = pairs.result[rows], pairs.truth[rows]
    xy = found.keypoints[result, :, :2]
    same = _similarity_to(xy, truth, other, np.arange(len(mirror)), sigmas)  # (pairs, F)
    mirrored = _similarity_to(xy, truth, other, mirror, sigmas)
    is_own = person[result] == other

    shape = (len(found), len(sigmas))
    right = np.zeros(shape)
    right[result[is_own]] = same[is_own]
    inverted = np.zeros(shape)
    inverted[result[is_own]] = mirrored[is_own]
    swapped = np.zeros(shape)
    np.maximum.at(swapped, result[~is_own], np.maximum(same, mirrored)[~is_own])

    best = np.maximum(np.maximum(right, inverted), swapped)
    at_right = np.where(right >= GOOD_SIMILARITY, _GOOD, _JITTER)
    elsewhere = np.where(inverted == best, _INVERSION, _SWAP)
    kinds = np.where(right == best, at_right, elsewhere)
    kinds[best < MIN_SIMILARITY] = _MISS
    labelled = (person >= 0)[:, None] & truth.labelled[person]
    kinds[~labelled] = UNLABELLED
    return kinds, best


def corrected_keypoints(
    found: Found,
    truth: Truth,
    person: np.ndarray,
    kinds: np.ndarray,
    best: np.ndarray,
    corrections: Sequence[str],
    skeleton: Skeleton,
) -> np.ndarray:
    """(N, F, 3) the keypoints of the results after correcting the localisation errors named in ``corrections``.

    A corrected keypoint lies in the direction of the found one from the true one, at the distance d of a similarity s:

        d = sqrt(-2 ln(s) area) 2 sigma

    s is 0.85 for a jitter and 0.5 for a miss, the upper limits of these kinds; for an inversion or a swap it is the
    similarity to the keypoint with which it was confused. Ronchi and Perona use the same s, but their code computes
    d with sigma instead of 2 sigma, so that its corrected keypoints have the similarity s^(1/4).

    Args:
        person, kinds, best: as in ``classify_keypoints``.
    """
    target = best.copy()
    target[kinds == _JITTER] = GOOD_SIMILARITY
    target[kinds == _MISS] = MIN_SIMILARITY
    moved = np.isin(kinds, [KINDS.index(kind) for kind in corrections])
    row, k = np.nonzero(moved)
    owner = person[row]
    true_xy = truth.keypoints[owner, k, :2]
    gap = found.keypoints[row, k, :2] - true_xy
    length = np.hypot(gap[:, 0], gap[:, 1])
    direction = gap / length[:, None]  # a keypoint at the right place has no error, so no length is 0
    scale = np.sqrt(truth.areas[owner] + np.spacing(1)) * 2 * np.array(skeleton.sigmas)[k]
    # A similarity of 1 may be a little more after rounding.
    distance = np.sqrt(-2 * np.log(np.minimum(target[row, k], 1.0))) * scale * (1 - _MARGIN)
    keypoints = found.keypoints.copy()
    keypoints[row, k, :2] = true_xy + direction * distance[:, None]
    return keypoints


def _similarity_to(
    xy: np.ndarray, truth: Truth, person: np.ndarray, keypoint: np.ndarray, sigmas: np.ndarray
) -> np.ndarray:
    """(pairs, F) similarity of found keypoints (pairs, F, 2) to ``keypoint`` (F,) of people; 0 if not labelled."""
    true = truth.keypoints[person][:, keypoint]
    return np.where(true[..., 2] > 0, similarity(xy - true[..., :2], truth.areas[person, None], sigmas[keypoint]), 0.0)
