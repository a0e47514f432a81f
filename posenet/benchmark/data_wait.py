"""How long training steps wait for data."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from tqdm import tqdm

from posenet.benchmark.report import Report, share
from posenet.data.dataset import PoseDataset
from posenet.data.loader import close_loader, make_loader
from posenet.data.sampler import TrainSampler
from posenet.training.device_prefetch import prefetch_to_device
from posenet.training.trainer import TrainStep


def measure_wait(
    train_step: TrainStep, dataset: PoseDataset, batch_size: int, workers: int, steps: int
) -> dict[str, float]:
    """Train on a loader's batches for an epoch that does not count and then for ``steps``, in whole epochs.

    Returns:
        Names with units: the share of waiting in all steps but each epoch's first, and the medians of the whole step
        and of the wait for an epoch's first batch.
    """
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    loader = make_loader(dataset, sampler, workers, train_step.runtime.device.type != "cpu")
    waits: list[float] = []
    firsts: list[float] = []
    whole: list[float] = []
    try:
        epochs = 1 + -(-steps // sampler.steps)
        sampler.start(0, epochs=epochs)
        batches = prefetch_to_device(loader, train_step.runtime)
        for epoch in tqdm(range(epochs), desc="wait", leave=False, disable=None):
            for step in range(sampler.steps):
                started = time.perf_counter()
                batch = next(batches)
                waited = time.perf_counter() - started
                train_step([batch])
                train_step.runtime.synchronize()
                if epoch:
                    (waits if step else firsts).append(waited)
                    whole.append(time.perf_counter() - started)
    finally:
        close_loader(loader)
    return {
        "data_wait": statistics.mean(waits or firsts) / statistics.mean(whole),
        "fed_steps": len(whole),
        "fed_step_ms": 1000 * statistics.median(whole),
        "first_wait_ms": 1000 * statistics.median(firsts),
        "workers": workers,
    }


def with_wait(report: Report, found: dict[str, float]) -> Report:
    """The report of a training step with what its data take."""
    note = (
        f"fed by workers: {found['workers']}: {found['data_wait']:.2%} of {found['fed_steps']} steps of "
        f"{found['fed_step_ms']:.0f} ms is waiting for data; the first batch of a later epoch takes "
        f"{found['first_wait_ms']:.1f} ms ({share(found['first_wait_ms'], found['fed_step_ms'])} of one step)"
    )
    return replace(report, numbers=report.numbers | found, notes=[*report.notes, note])
