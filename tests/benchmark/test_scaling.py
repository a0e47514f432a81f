"""The benchmark of training in several processes."""

from __future__ import annotations

from pathlib import Path

import torch

from posenet.benchmark.scaling import count_host_reads
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark


def test_numbers_for_two_processes(tmp_path: Path) -> None:
    options = ["--input-size", "64", "--batch-size", "2", *TINY_NETWORK, "optim.name=adamw"]
    numbers = run_benchmark(tmp_path, "train", "--processes", "2", *options)
    assert_positive(numbers, "samples_per_s", "step_ms", "scaling_efficiency", "scaling_bound")
    assert numbers["distributed_overhead"] > -1
    assert list(numbers["samples_per_s"]) == ["plain", "distributed", "strangers", "together"]
    # The result of a step, with the guard's vote and the gradient norm, is read later.
    assert numbers["host_reads_per_step"] == 0


def test_each_read_of_a_tensor_by_the_host_is_counted() -> None:
    values = torch.ones(2)
    assert count_host_reads(lambda: values * 2) == 0
    assert count_host_reads(lambda: (values.tolist(), values.sum().item(), bool(values[0]))) == 3
