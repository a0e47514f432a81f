"""The benchmarks run on an accelerator and write sensible numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark

SIZES = ["--input-size", "64", "--batch-size", "2"]
OPTIONS = {
    "targets": (SIZES, ["ms_per_sample"]),
    "network": (SIZES, ["heatmaps_images_per_s", "forward_images_per_s", "matmul_gflop_per_s"]),
    "train": (SIZES, ["samples_per_s", "step_ms", "peak_memory_gib"]),
    "gpu": (["--input-size", "64", "--batch-sizes", "2"], ["checkpoint_stall_ms", "loader_images_per_s"]),
    "predict": (["--height", "64"], ["stream_pictures_per_s", "alone_ms"]),
}
"""Flags and keys of positive numbers of each benchmark that has --device."""


@pytest.mark.parametrize("name", OPTIONS)
def test_numbers_of_a_benchmark(accelerator: torch.device, tmp_path: Path, name: str) -> None:
    flags, keys = OPTIONS[name]
    network = TINY_NETWORK if name != "targets" else []
    numbers = run_benchmark(tmp_path, name, "--device", str(accelerator), *flags, *network)
    assert_positive(numbers, *keys)
    assert numbers["machine"]["device"].startswith(str(accelerator))
