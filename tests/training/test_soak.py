"""A long run does not leak: memory, open files and threads of all its processes stay constant."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from posenet.devices.runtime import Runtime
from tests.helpers.tiny_training import CPU, tiny_trainer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

STEPS = 2000
WARMUP_STEPS = 500
"""Steps after which all caches are full."""
MEASURE_EVERY = 100
MAX_GROWTH_MEGABYTES = 32
"""Allowed growth of the memory of all processes between the two halves of the steps after the warmup."""
MAX_GROWTH_FILES = 8
"""Allowed growth of the number of open files. A worker's larger batch may need another shared memory file."""
OVERRIDES = (
    "train.batch_size=2",
    "train.epochs=9999",
    "data.workers=2",
    "checkpoint.every_steps=50",
    "average.kind='ema'",
    "log.every_steps=10",
)


class Usage(NamedTuple):
    """What several processes use together."""

    megabytes: float
    files: int
    threads: int


def measure_usage(pids: list[int]) -> Usage:
    """Measure the usage of processes, without the memory of libraries, which they share with other programs."""
    kilobytes = 0
    files = 0
    threads = 0
    for pid in pids:
        process = Path(f"/proc/{pid}")
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                kilobytes += int(line.split()[1])
        files += len(os.listdir(process / "fd"))
        threads += len(os.listdir(process / "task"))
    return Usage(kilobytes / 1024, files, threads)


def peak(usages: list[Usage]) -> Usage:
    """The largest value of every field."""
    return Usage(*map(max, zip(*usages)))


@pytest.mark.torture
def test_two_thousand_steps_do_not_leak_memory_files_or_threads(stores: dict[str, Path], tmp_path: Path) -> None:
    usages: list[Usage] = []
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *OVERRIDES, steps=STEPS) as trainer:
        train_step = trainer.train_step

        def train_and_measure(batches: Any) -> Any:
            result = train_step(batches)
            step = len(trainer.losses)
            if step % MEASURE_EVERY == 0:
                workers = [worker.pid for worker in trainer.input.loader.loader._iterator._workers]
                usages.append(measure_usage([os.getpid(), *workers]))
                sys.__stdout__.write(f"step {step}: {usages[-1]}\n")
            return result

        trainer.train_step = train_and_measure
        trainer.run()
    assert len(trainer.losses) == STEPS
    after_warmup = usages[WARMUP_STEPS // MEASURE_EVERY :]
    middle = len(after_warmup) // 2
    first_peak = peak(after_warmup[:middle])
    second_peak = peak(after_warmup[middle:])
    assert second_peak.megabytes < first_peak.megabytes + MAX_GROWTH_MEGABYTES
    assert second_peak.files <= first_peak.files + MAX_GROWTH_FILES
    assert second_peak.threads <= first_peak.threads
