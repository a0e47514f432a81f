"""A long run does not swell: memory, open files and threads of all its processes stay as they are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from posenet.devices.runtime import Runtime
from tests.helpers.tiny_training import CPU, tiny_trainer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

STEPS, WARM, EVERY = 2000, 500, 100
"""Steps in all, steps until caches are full, steps between measurements."""
MEGABYTES = 32
"""How much the memory of all processes together may differ between the two halves of what follows."""

FILES = 8
"""How much the number of open files may: now and then a worker's larger batch takes a new piece of shared memory."""


def usage(workers: list[int]) -> dict[str, float]:
    """Megabytes of memory that are these processes' own or shared among them, open files and threads.

    Libraries do not count: they are shared with whatever else runs on the machine, which comes and goes.
    """
    pids = [os.getpid(), *workers]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    memory = sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return {
        "MB": memory / 1024,
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
    }


@pytest.mark.torture
def test_two_thousand_steps(stores, tmp_path, record_property):
    measured: list[dict[str, float]] = []
    overrides = [
        "train.batch_size=2",
        "train.epochs=9999",
        "data.workers=2",
        "checkpoint.every_steps=50",
        "average.kind='ema'",
        "log.every_steps=10",
    ]
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *overrides, steps=STEPS) as trainer:
        update = trainer.train_step

        def measure(batches):
            outcome = update(batches)
            if len(trainer.losses) % EVERY == 0:
                measured.append(usage([w.pid for w in trainer.input.loader.loader._iterator._workers]))
                sys.__stdout__.write(f"step {len(trainer.losses)}: {measured[-1]}\n")
            return outcome

        trainer.train_step = measure
        trainer.run()
    assert len(trainer.losses) == STEPS
    warm = measured[WARM // EVERY :]
    first, second = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    record_property("soak", str((first[0], second[-1])))
    assert max(m["MB"] for m in second) < max(m["MB"] for m in first) + MEGABYTES
    assert max(m["files"] for m in second) <= max(m["files"] for m in first) + FILES
    assert max(m["threads"] for m in second) <= max(m["threads"] for m in first)
