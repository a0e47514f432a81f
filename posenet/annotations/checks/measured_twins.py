"""Finding the twins of keypoints by measuring: which pairing makes mirrored poses look like the others?

In a mirrored image every keypoint is at the place of its twin. So if the right pairs are swapped after mirroring, poses
have the statistics of those that are not mirrored. With other pairs left and right change sides, or the corners of a
chair's seat run the other way round. If one pairing fits, and all others clearly fit worse, it is the right one;
otherwise the annotations say nothing.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

MIN_POSES, MAX_POSES = 20, 5000
"""Fewer poses show nothing; of more, some are chosen."""
MAX_KEYPOINTS = 40
"""With more keypoints, measuring takes too long."""
NUM_RESAMPLES = 30
"""So often the poses are drawn again, with replacement, to see how certain a difference is."""
MIN_CERTAINTY = 3.5
"""Every other pairing must fit worse by this many standard deviations."""
MAX_MISFIT = 0.25
"""Largest root mean square of the differences, relative to the values, of a pairing that fits."""
MIN_RIVAL_MISFIT = 0.2
"""Smallest one by which other pairings must fit worse, in the values that tell most."""
MIN_RIVAL_MISFIT_WITHOUT_TWINS = 0.5
"""The same where the best pairing has no twins. It is larger, because bodies that are seen as often from the front as
from behind nearly look like that."""
CHANCE = 2.5
"""Differences of fewer standard deviations are by chance."""
MIN_VARIANCE = 1e-4
"""Smallest variance of a value, relative to its mean square: annotations are not more exact."""
NUM_PAIRINGS, NUM_ROUNDS = 20, 8
"""So many pairings, those that fit best, grow in each of so many rounds; the best is compared with as many others."""
SIGNS = np.array([-1.0, 1.0, 1.0, 1.0, -1.0], np.float32)[:, None, None]
"""What mirroring does to the values of ``_Statistics``: keeps or negates them."""

Pairing = np.ndarray
"""(K,) int64: the twin of every keypoint, or the keypoint itself."""


class _Statistics(NamedTuple):
    """What is known of five values of any two keypoints, over the poses in which both are labelled.

    The values are in sizes of the pose: the distances in x and in y and their length; and of the deviations of both
    keypoints from their mean positions, the product in x and the area between them, which says which way round they
    run. NaN if the two keypoints are never labelled together.
    """

    means: np.ndarray  # (5, K, K)
    squares: np.ndarray  # (5, K, K), means of the squares
    variances: np.ndarray  # (5, K, K), those of the means


def measure_twins(joints: np.ndarray, known: Sequence[tuple[int, int]], unknown: Sequence[int]) -> Pairing | None:
    """Find the twins of some keypoints in (P, K, 3) poses: x, y, visibility.

    Args:
        known: the twins that are known; all other keypoints that are not ``unknown`` have none.
        unknown: keypoints that have a twin among them, or none.

    Returns:
        The twins of all K keypoints; None if the poses do not show them clearly.
    """
    poses = joints[(joints[..., 2] > 0).sum(1) >= 2]
    num_keypoints = joints.shape[1]
    if len(poses) < MIN_POSES or num_keypoints > MAX_KEYPOINTS or not len(unknown):
        return None
    random = np.random.default_rng(0)
    values = _values_of_poses(poses[random.permutation(len(poses))[:MAX_POSES]])
    resamples = random.multinomial(len(values), np.full(len(values), 1 / len(values)), NUM_RESAMPLES)
    measured, *resampled = _measure(values, np.vstack([np.ones(len(values)), resamples]))
    start = np.arange(num_keypoints)
    for a, b in known:
        start[[a, b]] = b, a
    best, *rivals = _fitting_pairings(measured, start, np.array(unknown))
    misfit, _ = _compare(measured, best)
    of_samples = [_compare(sample, best) for sample in resampled]
    by_chance = np.mean([own.mean() for own, _ in of_samples]) - misfit.mean()
    if misfit.mean() - by_chance > MAX_MISFIT**2:
        return None
    has_twins = not np.array_equal(best, start)
    needed = MIN_RIVAL_MISFIT if has_twins else MIN_RIVAL_MISFIT_WITHOUT_TWINS
    for rival in rivals:
        is_concerned = (rival != best)[:, None] | (rival != best)
        more = (_compare(measured, rival)[0] - misfit)[:, is_concerned].mean(axis=1)
        evidence = [
            (_compare(sample, rival)[1] - own)[:, is_concerned].mean()
            for sample, (_, own) in zip(resampled, of_samples)
        ]
        if more.max() < needed**2 or np.mean(evidence) < MIN_CERTAINTY * np.std(evidence):
            return None
    return best


def _values_of_poses(poses: np.ndarray) -> np.ndarray:
    """(P, 5, K, K) float32 values of ``_Statistics``; NaN where one of the two keypoints is not labelled."""
    points = np.where(poses[..., 2:] > 0, poses[..., :2], np.nan)
    points = points - np.nanmean(points, axis=1, keepdims=True)
    points = points / np.sqrt(np.nanmean(points**2, axis=(1, 2), keepdims=True).clip(1e-12))
    across, down = np.moveaxis(points[:, None] - points[:, :, None], -1, 0)  # (P, K, K)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a keypoint that is never labelled
        x, y = np.moveaxis(points - np.nanmean(points, axis=0), -1, 0)  # (P, K)
    together = x[:, :, None] * x[:, None]
    area = x[:, :, None] * y[:, None] - y[:, :, None] * x[:, None]
    return np.stack([across, down, np.hypot(across, down), together, area], axis=1).astype(np.float32)


def _measure(values: np.ndarray, weights: np.ndarray) -> list[_Statistics]:
    """The statistics of (P, 5, K, K) values for every row of (R, P) weights."""
    is_labelled = np.isfinite(values[:, :1])
    filled = np.nan_to_num(values)
    total, means, squares = (
        np.tensordot(weights.astype(np.float32), one.astype(np.float32), axes=1)
        for one in (is_labelled, filled, filled**2)
    )
    with np.errstate(invalid="ignore"):
        means, squares = means / total, squares / total
        variances = (squares - means**2).clip(MIN_VARIANCE * squares) / total
    return [_Statistics(*arrays) for arrays in zip(means, squares, variances)]


def _compare(statistics: _Statistics, pairing: Pairing) -> tuple[np.ndarray, np.ndarray]:
    """(5, K, K) the misfit and the evidence of poses beside mirrored ones with swapped twins; 0 if little is labelled.

    Misfits are squares of the differences, relative to the mean squares of the values; the evidence is how unlikely
    they are by chance.
    """
    mirrored = _Statistics(*(values[:, pairing][:, :, pairing] for values in statistics))
    differences = (statistics.means - SIGNS * mirrored.means) ** 2
    misfit = differences / ((statistics.squares + mirrored.squares) / 2).clip(1e-9)
    evidence = _unlikeliness(differences, statistics.variances + mirrored.variances)
    return np.nan_to_num(misfit), np.nan_to_num(evidence)


def _unlikeliness(squares: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """0 for squares of differences that may be by chance; the logarithm, so that an outlier counts little more."""
    return np.asarray(np.log1p((squares / variances.clip(1e-9) - CHANCE**2).clip(0)))


def _fitting_pairings(statistics: _Statistics, start: Pairing, unknown: np.ndarray) -> list[Pairing]:
    """The pairing that fits best, followed by those that fit next best.

    It grows from the known pairs; without any, from every two keypoints that may be twins.
    """

    def best(pairings: Iterable[Pairing], count: int = NUM_PAIRINGS) -> list[Pairing]:
        """The different ones against which there is least evidence, in this order."""
        different = map(np.array, dict.fromkeys(tuple(pairing.tolist()) for pairing in pairings))
        return sorted(different, key=lambda pairing: float(_compare(statistics, pairing)[1].sum()))[:count]

    everything = np.arange(len(start))
    decided = np.setdiff1d(everything, unknown)
    pairings = [start]
    if len(decided):
        pairings.append(_pair_with_anchors(statistics, start, decided, unknown))
    if np.array_equal(start, everything):
        for a, b in itertools.combinations_with_replacement(unknown.tolist(), 2):
            pairing = start.copy()
            pairing[[a, b]] = b, a
            pairings.append(_pair_with_anchors(statistics, pairing, np.union1d(decided, [a, b]), unknown))
    for _ in range(NUM_ROUNDS):
        pairings = best(pairings)
        pairings += [_pair_with_anchors(statistics, pairing, everything, unknown) for pairing in pairings]
    [fittest] = best(pairings, 1)
    return best([*pairings, *_variations(fittest, unknown)], NUM_PAIRINGS + 1)


def _pair_with_anchors(statistics: _Statistics, pairing: Pairing, anchors: np.ndarray, unknown: np.ndarray) -> Pairing:
    """Pair the unknown keypoints so that their statistics with the anchors, which are paired already, fit best."""
    from scipy.optimize import linear_sum_assignment

    means, _, variances = (values[:, unknown][:, :, anchors] for values in statistics)  # (5, U, A)
    twin_means, _, twin_variances = (values[:, unknown][:, :, pairing[anchors]] for values in statistics)
    differences = (means[:, :, None] - SIGNS[..., None] * twin_means[:, None]) ** 2  # (5, U, U, A)
    evidence = _unlikeliness(differences, variances[:, :, None] + twin_variances[:, None])
    costs = np.nan_to_num(evidence, nan=1.0).mean(axis=(0, 3))
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
