"""The best one-to-one assignment between two sets."""

from __future__ import annotations

import cv2
import numpy as np


def assign(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair rows with columns, each at most once, so that the sum of their gains is as large as possible.

    OpenCV's earth mover's distance solves the transport problem exactly. Where every row and every column holds one
    unit, its solution is an assignment.

    Args:
        gains: (N, M), 0-1; a pair without a gain is never made.

    Returns:
        The row and the column of every pair.
    """
    if not gains.any():
        return np.zeros(0, int), np.zeros(0, int)
    units = np.ones((max(gains.shape), 1), np.float32)
    costs = (1 - gains).astype(np.float32)
    _, _, flow = cv2.EMD(units[: len(gains)], units[: gains.shape[1]], cv2.DIST_USER, cost=costs)
    rows, columns = np.nonzero((flow > 0.5) & (gains > 0))
    return rows, columns
