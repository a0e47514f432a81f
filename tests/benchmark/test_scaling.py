"""The benchmark of training in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenet.benchmark.scaling import count_host_waits
from posenet.settings import load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark
from tests.helpers.host_waits import LINES_THAT_WAIT


def test_numbers_for_two_processes(tmp_path: Path) -> None:
    options = ["--input-size", "64", "--batch-size", "2", *TINY_NETWORK, "optim.name=adamw"]
    numbers = run_benchmark(tmp_path, "train", "--processes", "2", *options)
    assert_positive(numbers, "samples_per_s", "step_ms", "scaling_efficiency", "scaling_bound")
    assert numbers["distributed_overhead"] > -1
    assert list(numbers["samples_per_s"]) == ["plain", "distributed", "strangers", "together"]
    assert numbers["host_reads_per_step"] == sum(LINES_THAT_WAIT.values())


@pytest.mark.parametrize("settings", [[], ["train.amp=bf16", "train.channels_last=true"], ["optim.name=adamw"]])
def test_a_training_step_waits_only_at_the_declared_lines(settings: list[str]) -> None:
    network = ["model.stacks=1", "model.width=16", "model.growth=2", "train.input_size=64", "train.batch_size=2"]
    config = load_config(None, [*network, *settings])
    assert count_host_waits(config, torch.device("cpu")) == LINES_THAT_WAIT
