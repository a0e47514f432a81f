"""The benchmark of the training step."""

from __future__ import annotations

from pathlib import Path

import torch

from posenet.benchmark.train import count_step_gflop, synthetic_batch
from posenet.settings import load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark


def test_numbers_for_a_batch_in_memory(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "train", "--input-size", "64", "--batch-size", "2", *TINY_NETWORK)
    assert_positive(
        numbers,
        "samples_per_s",
        "step_ms",
        "forward_ms",
        "backward_ms",
        "update_ms",
        "step_gflop",
        "stage_ms",
        "matmul_gflop_per_s",
    )
    assert list(numbers["stage_ms"]) == ["targets", "network", "loss", "backward", "update"]
    assert numbers["batch_size"] == 2


def test_frozen_parameters_need_fewer_operations() -> None:
    overrides = [*TINY_NETWORK[1:], "train.input_size=64", "train.batch_size=2"]
    whole = count_step_gflop(load_config(None, overrides))
    frozen = count_step_gflop(load_config(None, [*overrides, 'train.freeze=["stem.*"]']))
    assert 0 < frozen < whole


def test_the_synthetic_batch_has_the_shapes_of_a_training_batch() -> None:
    batch = synthetic_batch(load_config(None, ["train.batch_size=2", "train.input_size=[64,128]"]))
    assert batch.images.shape == (2, 64, 128, 3)
    assert batch.images.dtype == torch.uint8
    assert batch.person_mask.shape == batch.mask_miss.shape == (2, 16, 32)
