"""Finding the twins of keypoints by measuring: which pairing makes mirrored poses look like the others?

In a mirrored image every keypoint is at the place of its twin. So if the right pairs are swapped after mirroring, poses
have the statistics of those that are not mirrored. With other pairs left and right change sides, or the corners of a
chair's seat run the other way round. If one pairing fits, and all others clearly fit worse, it is the right one;
otherwise the annotations say nothing.

Five values of any two keypoints are compared, in sizes of the pose: the distances in x and in y and their length; and
of the deviations of both keypoints from their mean positions, the product in x and the area between them, which says
which way round they run. The misfit of a value is the logarithm of 1 and its squared distance from the mean, relative
to the variance; so an outlier counts little more.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence

import numpy as np

MIN_POSES, MAX_POSES = 20, 1000
"""Fewer poses show nothing; of more, some are chosen."""
MAX_KEYPOINTS = 40
"""With more keypoints, measuring takes too long."""
MAX_MISFIT = 0.02
"""So much worse than poses as they are may mirrored poses fit, beside what is by chance in few poses."""
MIN_RIVAL_MISFIT = 0.03
"""By so much must every other pairing fit worse, in the value that tells most. Bodies that are seen as often from the
front as from behind hardly differ from those without twins."""
MIN_CERTAINTY = 3.5
"""And by so many standard deviations."""
MIN_VARIANCE = 1e-4
"""Smallest variance of a value, relative to its mean square: annotations are not more exact."""
NUM_PAIRINGS, NUM_ROUNDS = 12, 8
"""So many pairings, those that fit best, grow in each of so many rounds; the best is compared with as many others."""

SIGNS = np.array([-1.0, 1.0, 1.0, 1.0, -1.0], np.float32)[:, None, None]
"""What mirroring does to the five values: keeps or negates them."""

Pairing = np.ndarray
"""(K,) int64: the twin of every keypoint, or the keypoint itself."""


def measure_twins(joints: np.ndarray, known: Sequence[tuple[int, int]], unknown: Sequence[int]) -> Pairing | None:
    """Find the twins of some keypoints in (P, K, 3) poses: x, y, visibility.

    Args:
        known: the twins that are known; all other keypoints that are not ``unknown`` have none.
        unknown: keypoints that have a twin among them, or none.

    Returns:
        The twins of all K keypoints; None if the poses do not show them clearly.
    """
    poses = joints[(joints[..., 2] > 0).sum(1) >= 2]
    if len(poses) < MIN_POSES or joints.shape[1] > MAX_KEYPOINTS or not len(unknown):
        return None
    start = np.arange(joints.shape[1])
    for a, b in known:
        start[[a, b]] = b, a
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of keypoints that are never labelled together
        values = _values_of_poses(np.random.default_rng(0).permutation(poses)[:MAX_POSES])
        means, variances = np.nanmean(values, axis=0), np.nanvar(values, axis=0)
        variances = variances.clip(MIN_VARIANCE * (variances + means**2)).clip(1e-9)
        best, *rivals = _fitting_pairings(means, variances, start, np.array(unknown))
        own = np.log1p((values - means) ** 2 / variances)
        misfits = np.log1p((_mirror(values, best) - means) ** 2 / variances)
        if not np.nanmean(misfits) - np.nanmean(own) <= MAX_MISFIT + 1 / len(values):
            return None
        for rival in rivals:
            is_concerned = (rival != best)[:, None] | (rival != best)
            more = np.log1p((_mirror(values, rival) - means) ** 2 / variances) - misfits
            of_poses = np.nanmean(more[:, :, is_concerned], axis=2)  # (P, 5)
            rival_misfits = np.nan_to_num(np.nanmean(of_poses, axis=0))
            telling = rival_misfits.argmax()
            is_measured = np.isfinite(of_poses[:, telling])
            error = of_poses[is_measured, telling].std() / np.sqrt(max(is_measured.sum(), 1))
            if rival_misfits[telling] < max(MIN_RIVAL_MISFIT, MIN_CERTAINTY * error):
                return None
    return best


def _values_of_poses(poses: np.ndarray) -> np.ndarray:
    """(P, 5, K, K) float32 values; NaN where one of the two keypoints is not labelled."""
    points = np.where(poses[..., 2:] > 0, poses[..., :2], np.nan)
    points = points - np.nanmean(points, axis=1, keepdims=True)
    points = points / np.sqrt(np.nanmean(points**2, axis=(1, 2), keepdims=True).clip(1e-12))
    across, down = np.moveaxis(points[:, None] - points[:, :, None], -1, 0)  # (P, K, K)
    x, y = np.moveaxis(points - np.nanmean(points, axis=0), -1, 0)  # (P, K)
    together = x[:, :, None] * x[:, None]
    area = x[:, :, None] * y[:, None] - y[:, :, None] * x[:, None]
    return np.stack([across, down, np.hypot(across, down), together, area], axis=1).astype(np.float32)


def _mirror(values: np.ndarray, pairing: Pairing) -> np.ndarray:
    """(..., 5, K, K) values of mirrored poses whose twins are swapped."""
    return np.asarray(SIGNS * values[..., pairing, :][..., pairing])


def _fitting_pairings(means: np.ndarray, variances: np.ndarray, start: Pairing, unknown: np.ndarray) -> list[Pairing]:
    """The pairing that fits (5, K, K) statistics best, followed by those that fit next best.

    It grows from the known pairs; without any, from every two keypoints that may be twins.
    """

    def misfit(pairing: Pairing) -> float:
        squares = variances[:, pairing][:, :, pairing] + (means - _mirror(means, pairing)) ** 2
        return float(np.nanmean(np.log1p(squares / variances)))

    def best(pairings: Iterable[Pairing], count: int = NUM_PAIRINGS) -> list[Pairing]:
        different = map(np.array, dict.fromkeys(tuple(pairing.tolist()) for pairing in pairings))
        return sorted(different, key=misfit)[:count]

    everything = np.arange(len(start))
    decided = np.setdiff1d(everything, unknown)
    pairings = [start]
    if len(decided):
        pairings.append(_pair_with_anchors(means, variances, start, decided, unknown))
    if np.array_equal(start, everything):
        for a, b in itertools.combinations_with_replacement(unknown.tolist(), 2):
            pairing = start.copy()
            pairing[[a, b]] = b, a
            pairings.append(_pair_with_anchors(means, variances, pairing, np.union1d(decided, [a, b]), unknown))
    for _ in range(NUM_ROUNDS):
        pairings = best(pairings)
        pairings += [_pair_with_anchors(means, variances, pairing, everything, unknown) for pairing in pairings]
    [fittest] = best(pairings, 1)
    return best([*pairings, *_variations(fittest, unknown)], NUM_PAIRINGS + 1)


def _pair_with_anchors(
    means: np.ndarray, variances: np.ndarray, pairing: Pairing, anchors: np.ndarray, unknown: np.ndarray
) -> Pairing:
    """Pair the unknown keypoints so that their statistics with the anchors, which are paired already, fit best."""
    from scipy.optimize import linear_sum_assignment

    own_means, own_variances = (values[:, unknown][:, :, None, anchors] for values in (means, variances))
    twin_means, twin_variances = (values[:, None, unknown][..., pairing[anchors]] for values in (means, variances))
    squares = twin_variances + (own_means - SIGNS[..., None] * twin_means) ** 2  # (5, U, U, A)
    costs = np.nan_to_num(np.log1p(squares / own_variances), nan=1.0).mean(axis=(0, 3))
    _, twins = linear_sum_assignment(costs + costs.T)
    own = np.arange(len(twins))
    result = pairing.copy()
    result[unknown] = unknown[np.where(twins[twins] == own, twins, own)]
    return result


def _variations(pairing: Pairing, unknown: np.ndarray) -> list[Pairing]:
    """The pairings in which one pair is parted, or two keypoints have become twins."""
    variations = []
    for a, b in itertools.combinations(unknown.tolist(), 2):
        former = [int(pairing[a]), int(pairing[b])]
        variation = pairing.copy()
        variation[former] = former
        variation[[a, b]] = (a, b) if former == [b, a] else (b, a)
        variations.append(variation)
        if len({a, b, *former}) == 4:
            variations.append(variation.copy())
            variations[-1][former] = former[::-1]
    return variations
