"""The measurement of how long training steps wait for data."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark


def test_training_from_a_store_reports_the_wait_for_data(tmp_path: Path, store: Path) -> None:
    options = ["--input-size", "64", "--batch-size", "2", *TINY_NETWORK, "data.workers=0"]
    numbers = run_benchmark(tmp_path, "train", "--h5", store, *options)
    assert_positive(numbers, "data_wait", "fed_step_ms", "first_wait_ms")
    assert numbers["data_wait"] < 1
    assert numbers["fed_steps"] >= numbers["repeats"]
    assert numbers["workers"] == 0
