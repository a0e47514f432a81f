"""Precision over recall, as the COCO evaluation computes it, also with images that count several times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_RECALLS = np.linspace(0.0, 1.0, 101)
"""The same numbers as in ``pycocotools``, to the last bit."""


class _Level(NamedTuple):
    """The results at one threshold, as ranks."""

    correct: np.ndarray  # ranks of the correct results
    uncounted: np.ndarray  # ranks of the results that do not count
    uncounted_before: np.ndarray  # how many of those rank before each correct result


class PrecisionCurves:
    """Computes precision curves from N results at T thresholds, once or many times with other weights.

    Args:
        scores: (N,); of equal scores, the first ranks higher.
        correct: (T, N) whether a result matches a person.
        counted: (T, N) whether a result counts; all correct ones do.
    """

    def __init__(self, scores: np.ndarray, correct: np.ndarray, counted: np.ndarray) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._levels = []
        for is_correct, is_counted in zip(correct[:, self._order], counted[:, self._order]):
            ranks = np.flatnonzero(is_correct)
            uncounted = np.flatnonzero(~is_counted)
            self._levels.append(_Level(ranks, uncounted, np.searchsorted(uncounted, ranks)))

    def compute(self, num_people: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Compute the precision curves.

        Args:
            num_people: (T,) number of people to find, each as often as its image counts.
            weights: (N,) how often each result counts, whole numbers; once if None.

        Returns:
            (T, 101) the highest precision at recall 0, 0.01 ... 1 or beyond; -1 at thresholds without people.
        """
        ranked = np.ones(len(self._order)) if weights is None else weights[self._order]
        total = np.cumsum(ranked)
        curves = np.full((len(self._levels), len(_RECALLS)), -1.0)
        for curve, level, people in zip(curves, self._levels, num_people):
            if people <= 0:
                continue
            # The recall grows at correct results only, and between them the precision falls.
            num_correct = np.cumsum(ranked[level.correct])
            num_uncounted = np.append(0.0, np.cumsum(ranked[level.uncounted]))[level.uncounted_before]
            num_false = total[level.correct] - num_uncounted - num_correct
            # The order of the sum is that of pycocotools, so that the quotient is the same to the last bit.
            precision = num_correct / (num_false + num_correct + np.spacing(1))
            precision = np.maximum.accumulate(precision[::-1])[::-1]
            first = np.searchsorted(num_correct / people, _RECALLS, side="left")
            curve[:] = np.append(precision, 0.0)[first]
        return curves


def average_precision(curves: np.ndarray) -> float:
    """AP, the mean of precision curves over recalls and thresholds; -1 if there are no people at any threshold."""
    values = curves[curves > -1]
    return float(values.mean()) if len(values) else -1.0
