"""Loaders and their worker processes: the same batches, memory, open files and signals."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from posenet.data.shared_buffers import BUFFERS_PER_WORKER, received_buffers

from posenet.data.dataset import PoseDataset
from posenet.data.loader import close_loader, make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import Store
from posenet.settings import AugmentConfig

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc")


@pytest.fixture
def store(stores: dict[str, Path]) -> Iterator[Store]:
    with Store(stores["train"]) as store:
        yield store


def test_workers_load_the_same_batches_as_the_main_process(store: Store) -> None:
    dataset = PoseDataset(store, (64, 64), augment=AugmentConfig())
    batches = {}
    for workers in (0, 2):
        sampler = TrainSampler(len(dataset), batch_size=2, seed=1)
        sampler.start(epoch=1, step=1)
        batches[workers] = list(make_loader(dataset, sampler, workers))
    assert len(batches[0]) == sampler.steps - 1
    for a, b in zip(batches[0], batches[2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5])) and a.faults == b.faults == ()


def test_received_batches_stay_unchanged_while_workers_reuse_their_buffers(store: Store) -> None:
    """Batches of several sizes are kept to the end."""
    dataset = PoseDataset(store, (64, 64), augment=AugmentConfig())
    keys = [[(epoch, i % len(dataset)) for i in range(1 + epoch * 7 % 5)] for epoch in range(30)]
    loader = make_loader(dataset, keys, workers=2)
    for _ in range(2):
        kept = list(loader)
        for batch, expected in zip(kept, map(dataset.__getitems__, keys), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(batch[:5], expected[:5])) and not batch.images.is_shared()
    worker_ids = [worker.pid for worker in loader._iterator._workers]
    assert {(pid, number) for pid in worker_ids for number in range(BUFFERS_PER_WORKER)} <= set(
        received_buffers._buffers
    )
    close_loader(loader)
    assert not any(pid in worker_ids for pid, _ in received_buffers._buffers)


@needs_proc
def test_workers_do_not_keep_the_memory_of_another_loader_s_workers(store: Store) -> None:
    """A worker is forked while the main process holds the other workers' buffers, and lives as long as the run."""
    loaders = [make_loader(PoseDataset(store, (64, 64)), [[(0, 0)]], workers=1) for _ in range(2)]
    assert all(len(list(loader)) == 1 for loader in loaders)
    first, second = (loader._iterator._workers[0].pid for loader in loaders)
    assert f"/torch_{first}_" in Path(f"/proc/{first}/maps").read_text()
    assert f"/torch_{first}_" not in Path(f"/proc/{second}/maps").read_text()
    for loader in loaders:
        close_loader(loader)


@needs_proc
def test_a_worker_closes_the_inherited_file_before_it_reads(store: Store) -> None:
    store.read_record(0)  # opens the file that a worker inherits
    loader = make_loader(PoseDataset(store, (64, 64)), [], workers=1)
    assert list(loader) == []
    (worker,) = multiprocessing.active_children()
    deadline = time.monotonic() + 60
    while str(store.path) in open_files(worker.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    worker_files = open_files(worker.pid)
    close_loader(loader)
    assert worker_files and str(store.path) not in worker_files and str(store.path) in open_files(os.getpid())


def open_files(pid: int) -> list[str]:
    names = []
    for handle in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            names.append(os.readlink(f"/proc/{pid}/fd/{handle}"))
    return names


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="signals of POSIX only")
def test_workers_survive_signals_until_the_loader_is_closed(store: Store) -> None:
    dataset = PoseDataset(store, (64, 64))
    loader = make_loader(dataset, [[(0, i)] for i in range(4)], workers=2)
    batches = iter(loader)
    next(batches), next(batches)  # one from each worker: both have started
    workers = list(multiprocessing.active_children())
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    assert len(list(batches)) == 2
    close_loader(loader)
    assert len(workers) == 2 and not any(worker.is_alive() for worker in workers)


def test_closing_a_loader_twice_or_unused_does_nothing(store: Store) -> None:
    loader = make_loader(PoseDataset(store, (64, 64)), [[(0, 0)]], workers=1)
    close_loader(loader)
    list(loader)
    close_loader(loader)
    close_loader(loader)
    assert not multiprocessing.active_children()
