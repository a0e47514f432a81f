"""Precision over recall, as the COCO evaluation computes it, also with images that count several times."""

from __future__ import annotations

import numpy as np

_RECALLS = np.linspace(0.0, 1.0, 101)
"""The same numbers as in ``pycocotools``, to the last bit."""


def precision_curves(
    scores: np.ndarray,
    correct: np.ndarray,
    counted: np.ndarray,
    num_people: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Compute precision curves from N results at T thresholds.

    Args:
        scores: (N,); of equal scores, the first ranks higher.
        correct: (T, N) whether a result matches a person.
        counted: (T, N) whether a result counts; all correct ones do.
        num_people: (T,) people to find, by weight.
        weights: (N,) how often each result counts; once if None.

    Returns:
        (T, 101) the highest precision at recall 0, 0.01 ... 1 or beyond; -1 at thresholds without people.
    """
    order = np.argsort(-scores, kind="stable")
    correct = correct[:, order]
    counted = counted[:, order]
    weights = np.ones(len(order)) if weights is None else weights[order]
    curves = np.full((len(correct), len(_RECALLS)), -1.0)
    for level in np.flatnonzero(num_people > 0):
        # The precision is highest, and the recall grows, at correct results only.
        hits = np.flatnonzero(correct[level] & (weights > 0))
        num_correct = np.cumsum(weights[hits])
        num_counted = np.cumsum(weights * counted[level])[hits]
        # The order of the sum is that of pycocotools, so that the results are the same to the last bit.
        precision = num_correct / ((num_counted - num_correct) + num_correct + np.spacing(1))
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        index = np.searchsorted(num_correct / num_people[level], _RECALLS, side="left")
        curves[level] = np.append(precision, 0.0)[index]
    return curves


def average_precision(curves: np.ndarray) -> float:
    """AP, the mean of precision curves over recalls and thresholds; -1 if there are no people at any threshold."""
    values = curves[curves > -1]
    return float(values.mean()) if len(values) else -1.0
