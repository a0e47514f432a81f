"""Time that training steps wait for data."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from posenet.benchmark.report import Report, percent
from posenet.data.dataset import PoseDataset
from posenet.data.loader import make_loader
from posenet.data.sampler import SampleKey, TrainSampler
from posenet.devices.capabilities import supports_pinned_memory
from posenet.progress import progress_bar
from posenet.training.device_prefetch import prefetch_to_device
from posenet.training.input_stream import close_loader
from posenet.training.train_step import TrainStep

LOADER_ROUNDS = 4
"""Number of times that a loader's epoch contains every sample, so that filling its queue takes a small share of it."""
RECEIVED_BATCHES = 8
"""Number of batches for which the transfer from a worker is timed."""


def measure_data_wait(
    train_step: TrainStep, dataset: PoseDataset, batch_size: int, workers: int, steps: int
) -> dict[str, float]:
    """Train on the batches of a loader and measure how long each step waits for its batch.

    The first epoch warms up and is not counted. Then as many whole epochs follow as ``steps`` needs.

    Returns ``data_wait``, the share of waiting in all steps except the first of each epoch; and the medians, in
    milliseconds, of a step and of the wait for the first batch of an epoch. The names are those of the JSON file.
    """
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    epochs = 1 + math.ceil(steps / sampler.steps)
    sampler.start(0, epochs=epochs)
    loader = make_loader(dataset, sampler, workers, pin_memory=supports_pinned_memory(train_step.runtime.device))
    first_waits: list[float] = []  # of each epoch
    later_waits: list[float] = []
    step_seconds: list[float] = []
    try:
        batches = prefetch_to_device(loader, train_step.runtime)
        for epoch in progress_bar(range(epochs), "wait", unit="epoch", leave=False):
            for step in range(sampler.steps):
                started = time.perf_counter()
                batch = next(batches)
                waited = time.perf_counter() - started
                train_step([batch])
                train_step.runtime.synchronize()
                if epoch == 0:
                    continue
                step_seconds.append(time.perf_counter() - started)
                waits = first_waits if step == 0 else later_waits
                waits.append(waited)
    finally:
        close_loader(loader)
    # Epochs of a single step have no later waits.
    return {
        "data_wait": statistics.mean(later_waits or first_waits) / statistics.mean(step_seconds),
        "fed_steps": len(step_seconds),
        "fed_step_ms": 1000 * statistics.median(step_seconds),
        "first_wait_ms": 1000 * statistics.median(first_waits),
        "workers": workers,
    }


def add_data_wait(report: Report, wait: dict[str, float]) -> Report:
    """Add the result of ``measure_data_wait`` to the report of a training step."""
    note = (
        f"data from {wait['workers']} workers: {wait['data_wait']:.2%} of {wait['fed_steps']} steps of "
        f"{wait['fed_step_ms']:.0f} ms is waiting for data; the wait for the first batch of an epoch takes "
        f"{wait['first_wait_ms']:.1f} ms ({percent(wait['first_wait_ms'], wait['fed_step_ms'])} of a step)"
    )
    return replace(report, numbers=report.numbers | wait, notes=[*report.notes, note])


def training_batches(dataset: PoseDataset, samples: int, batch_size: int) -> list[list[SampleKey]]:
    """The first batches of training with at least ``samples`` samples, over as many epochs as necessary."""
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    num_batches = math.ceil(samples / batch_size)
    sampler.start(0, epochs=math.ceil(num_batches / sampler.steps))
    return list(itertools.islice(sampler, num_batches))


def measure_loader(
    dataset: PoseDataset, batches: Sequence[list[SampleKey]], workers: int, repeats: int
) -> tuple[float, float]:
    """Samples per second of a loader after its workers have started, and seconds to receive a finished batch."""
    loader = make_loader(dataset, list(batches) * LOADER_ROUNDS, workers)
    speeds = []
    waits = []
    try:
        for round_index in progress_bar(range(repeats + 1), "loader", unit="round", leave=False):
            started = time.perf_counter()
            num_samples = sum(len(batch.images) for batch in loader)
            if round_index:
                speeds.append(num_samples / (time.perf_counter() - started))
        iterator = iter(loader)
        for _ in zip(range(RECEIVED_BATCHES), iterator):
            time.sleep(2 * len(batches[0]) / min(speeds))  # the next batch is ready after this
            started = time.perf_counter()
            next(iterator, None)
            waits.append(time.perf_counter() - started)
    finally:
        close_loader(loader)
    return statistics.median(speeds), statistics.median(waits)
