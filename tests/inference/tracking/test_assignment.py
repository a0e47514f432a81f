"""The assignment is the best of all."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from posenet.inference.tracking.tracker import assign


@pytest.mark.parametrize("density", [1.0, 0.5, 0.2])
def test_no_other_assignment_has_a_larger_gain(density: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        gains = rng.random(rng.integers(1, 6, 2)) * (rng.random() < density)
        gains[rng.random(gains.shape) > density] = 0
        rows, columns = assign(gains)
        assert len(set(rows)) == len(rows) and len(set(columns)) == len(columns)
        wide = gains if gains.shape[0] <= gains.shape[1] else gains.T
        best = max(
            sum(wide[row, column] for row, column in enumerate(order))
            for order in permutations(range(wide.shape[1]), wide.shape[0])
        )
        assert gains[rows, columns].sum() == pytest.approx(best, abs=1e-5)
        assert (gains[rows, columns] > 0).all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3)])
def test_nothing_is_assigned_without_gains(shape: tuple[int, int]) -> None:
    rows, columns = assign(np.zeros(shape))
    assert len(rows) == len(columns) == 0
