"""The benchmark of training samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.benchmark.data import make_batch_in_stages, training_batches
from posenet.benchmark.timing import Stopwatch
from posenet.data.batch import BatchBuffers
from posenet.data.dataset import PoseDataset
from posenet.data.store.reader import Store
from posenet.settings import AugmentConfig
from tests.helpers.benchmark_runs import assert_positive, run_benchmark


def test_numbers_for_a_store(tmp_path: Path, store: Path) -> None:
    numbers = run_benchmark(
        tmp_path, "data", "--h5", store, "--input-size", "128", "--batch-size", "2", "--workers", "1"
    )
    assert_positive(
        numbers,
        "samples_per_s",
        "bound_samples_per_s",
        "share_of_bound",
        "stage_ms",
        "loader_samples_per_s",
        "receive_ms_per_batch",
        "copied_bytes_per_s",
        "decode_samples_per_s",
        "warp_samples_per_s",
        "plain_samples_per_s",
        "cpu_samples_per_s",
    )
    assert list(numbers["stage_ms"]) == ["read", "masks", "joints", "decode", "colour", "warp", "collate", "transfer"]
    # The image and two masks as bytes, then joints and the id, but no rendered maps.
    pixels = 3 * 128 * 128 + 2 * 32 * 32
    assert pixels < numbers["bytes_per_sample"] < 1.2 * pixels
    assert numbers["input_size"] == [128, 128]
    assert numbers["samples"] == 4


def test_a_synthetic_store_is_built_if_none_is_given(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "data", "--input-size", "64")
    assert_positive(numbers, "samples_per_s", "bound_samples_per_s", "bytes_per_sample")
    assert "loader_samples_per_s" not in numbers


def test_a_staged_batch_equals_the_batch_of_the_dataset(store: Path) -> None:
    with Store(store) as reader:
        dataset = PoseDataset(reader, (128, 192), "person", AugmentConfig(jitter_probability=0.5), seed=3)
        watch = Stopwatch()
        watch.start_round()
        for keys in training_batches(dataset, 6, 3):
            staged = make_batch_in_stages(dataset, keys, BatchBuffers.allocate(3, 128, 192), watch)
            for actual, expected in zip(staged, dataset.__getitems__(keys), strict=True):
                np.testing.assert_array_equal(actual, expected)


def test_batches_come_in_the_order_of_training(store: Path) -> None:
    with Store(store) as reader:
        dataset = PoseDataset(reader, (64, 64))
        batches = training_batches(dataset, 2 * len(dataset) + 1, 2)
    assert all(len(batch) == 2 for batch in batches)
    assert len(batches) * 2 >= 2 * len(dataset) + 1
    assert len({epoch for batch in batches for epoch, _ in batch}) > 1
