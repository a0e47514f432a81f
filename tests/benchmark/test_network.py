"""The benchmark of the network."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark


def test_numbers_for_both_paths(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "network", "--input-size", "128", *TINY_NETWORK)
    assert_positive(
        numbers,
        "heatmaps_ms",
        "forward_ms",
        "heatmaps_images_per_s",
        "forward_images_per_s",
        "heatmaps_gflop_per_s",
        "forward_gflop_per_s",
        "heatmaps_share_of_peak",
        "forward_share_of_peak",
        "matmul_gflop_per_s",
        "parameters",
    )
    assert 0 < numbers["heatmaps_gflop"] < numbers["forward_gflop"]
