"""The benchmark of diagnoses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.benchmark.diagnose import draw_results, draw_split
from tests.helpers.benchmark_runs import assert_positive, run_benchmark


def test_numbers_of_a_small_diagnosis(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "diagnose")
    assert_positive(numbers, "diagnose_s", "pycocotools_s", "compare_s", "peak_mib")
    assert (numbers["images"], numbers["people"], numbers["results"]) == (20, 40, 400)
    assert 0.05 < numbers["ap"] < 0.95


def test_the_input_is_as_large_as_asked_for() -> None:
    rng = np.random.default_rng(0)
    split = draw_split(rng, 7, 15)
    assert len(split.images) == 7 and len(split.people) == 15 and split.annotated
    assert len(draw_results(rng, split, 3)) == 21
