"""Cubic convolution as in the literature, with a matrix of weights: slow, and without a library."""

from __future__ import annotations

import numpy as np

from posenet.inference.networks import Letterbox
from posenet.settings import MAP_STRIDE


def resample(maps: np.ndarray, source: Letterbox, target: Letterbox) -> np.ndarray:
    """Resample (C, h, w) maps of one inference scale to all cells of another one, (C, h', w') float64."""
    rows, columns = (
        cubic_weights(size, side // MAP_STRIDE, old / new)
        for size, side, old, new in zip(maps.shape[1:], target.padded, source.resized, target.resized)
    )
    return rows @ maps.astype(np.float64) @ columns.T


def cubic_weights(size: int, new_size: int, step: float) -> np.ndarray:
    """(new_size, size) weights with a = -0.75; cells repeat at the border.

    ``step`` is the distance of two new cells, in old cells. Keys: "Cubic Convolution Interpolation for Digital Image
    Processing", IEEE Trans. ASSP 1981.
    """
    a = -0.75
    position = (np.arange(new_size) + 0.5) * step - 0.5
    weights = np.zeros((new_size, size))
    for offset in (-1, 0, 1, 2):
        cell = np.floor(position).astype(int) + offset
        d = np.abs(position - cell)
        near = ((a + 2) * d - (a + 3)) * d**2 + 1
        far = a * (((d - 5) * d + 8) * d - 4)
        np.add.at(weights, (np.arange(new_size), cell.clip(0, size - 1)), np.where(d <= 1, near, far))
    return weights
