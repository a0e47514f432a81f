"""Batches and loaders: the same batches with and without worker processes, their memory, and signals."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from posenet.data.dataset import Batch, PoseDataset, SampleKey
from posenet.data.loader import make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import Store
from posenet.settings import AugmentConfig
from tests.helpers.batches import same_batches
from tests.helpers.drawn_data import make_record, write_store
from tests.helpers.process_runs import fork_process, wait_for_exit


@pytest.fixture
def dataset(store: Store) -> PoseDataset:
    return PoseDataset(store, (64, 64), augment=AugmentConfig())


def test_people_are_padded_to_a_multiple_of_four_with_unlabelled_rows(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "a.h5", [make_record(number, number) for number in (1, 3, 5)]))
    dataset = PoseDataset(store, (64, 64), "image")
    batch = dataset.__getitems__([(0, 0), (0, 1)])
    assert batch.joints.shape == (2, 4, 18, 3) and batch.joints.dtype == torch.float32
    assert batch.joints[1, :3, :, 2].min() > 0
    assert not batch.joints[0, 1:].any() and not batch.joints[1, 3:].any()
    assert dataset[0, 2].joints.shape[1] == 8


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(method, marks=[] if method == "fork" else pytest.mark.slow)
        for method in multiprocessing.get_all_start_methods()
    ],
)
def test_workers_load_the_same_batches_as_the_main_process(dataset: PoseDataset, context: str) -> None:
    batches = {}
    for workers in (0, 2):
        sampler = TrainSampler(len(dataset), batch_size=2, seed=1)
        sampler.start(epoch=1, step=1)
        loader = make_loader(dataset, sampler, workers)
        if workers:
            loader.multiprocessing_context = context
        batches[workers] = list(loader)
    assert len(batches[0]) == sampler.steps - 1
    assert same_batches(batches[0], batches[2])


def _shared_blocks(process_id: int) -> int:
    """How many blocks of shared memory a process has; 0 where the system does not tell."""
    maps = Path(f"/proc/{process_id}/maps")
    return maps.read_text().count("/torch_") if maps.exists() else 0


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_received_batches_stay_unchanged_while_workers_reuse_their_memory(dataset: PoseDataset, prefetch: int) -> None:
    """Batches of several sizes are kept to the end; an iteration that is left early is followed by another one."""
    keys = [[(epoch, i % len(dataset)) for i in range(1 + epoch * 7 % 5)] for epoch in range(30)]
    expected = list(map(dataset.__getitems__, keys))
    loader = make_loader(dataset, keys, workers=2)
    loader.prefetch_factor = prefetch
    for batches in (10, 30, 30):
        kept = [batch for _, batch in zip(range(batches), loader)]
        assert same_batches(kept, expected[:batches])
        assert not any(batch.images.is_shared() for batch in kept)
        blocks = {worker.pid: _shared_blocks(worker.pid or 0) for worker in multiprocessing.active_children()}
        assert max(blocks.values()) <= prefetch + 1
    assert _shared_blocks(os.getpid()) == 0, "no shared memory stays"


class _MessageSizes(Dataset[torch.Tensor]):
    """The number of bytes of the message with which a worker sends a batch."""

    def __init__(self, dataset: PoseDataset) -> None:
        self.dataset = dataset

    def __getitems__(self, keys: list[SampleKey]) -> torch.Tensor:
        send = make_loader(self.dataset, [], workers=1).collate_fn
        assert send is not None
        batch = self.dataset.__getitems__(keys)._replace(faults=("a long message " * 1000,))
        return torch.tensor(len(ForkingPickler.dumps(send(batch))))


def test_the_message_of_a_large_batch_is_written_completely_or_not_at_all(dataset: PoseDataset) -> None:
    """Linux writes up to 4096 bytes at once, so a worker that is killed leaves no half of a message."""
    keys = [(0, index % len(dataset)) for index in range(128)]
    (size,) = make_loader(_MessageSizes(dataset), [keys], workers=1)  # type: ignore[arg-type]
    assert size < 4096


def test_a_batch_moves_to_a_device_with_its_faults(dataset: PoseDataset) -> None:
    batch = dataset.__getitems__([(0, 0)])._replace(faults=("one",), supervised=torch.zeros(1))
    moved = batch.to(torch.device("meta"))
    tensors = [value for value in moved if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6 and all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.faults == ("one",) and moved.images.shape == batch.images.shape


def test_a_loader_leaves_the_global_random_state_unchanged(dataset: PoseDataset) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    list(make_loader(dataset, [[(0, 0)]], workers=1))
    list(make_loader(dataset, [[(0, 0)]], workers=0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="signals of POSIX only")
def test_workers_finish_their_batches_after_a_signal(dataset: PoseDataset) -> None:
    others = set(multiprocessing.active_children())
    batches: Iterator[Batch] = iter(make_loader(dataset, [[(0, i)] for i in range(4)], workers=2))
    next(batches), next(batches)  # one from each worker: both have started
    workers = set(multiprocessing.active_children()) - others
    assert len(workers) == 2
    for worker in workers:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(worker.pid or 0, number)
    assert len(list(batches)) == 2


LEAVES_THE_LOOP = """
import signal
import sys
from posenet.data.dataset import PoseDataset
from posenet.data.loader import make_loader
from posenet.data.store import Store

if __name__ == "__main__":
    dataset = PoseDataset(Store(sys.argv[1]), (64, 64))
    loader = make_loader(dataset, [[(0, 0)]] * 100, workers=2)
    own = lambda *_: None
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, own)
    for batch in loader:
        break
    # PyTorch's handler would raise an error when the first worker is ended, and the others would go on for minutes.
    assert not hasattr(signal, "SIGCHLD") or signal.getsignal(signal.SIGCHLD) is own
"""


@pytest.mark.slow
def test_a_program_ends_after_it_has_left_a_loop_over_a_loader(stores: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAVES_THE_LOOP)
    command = [sys.executable, str(tmp_path / "program.py"), str(stores["train"])]
    assert subprocess.run(command, timeout=100).returncode == 0


_loops: list[Iterator[Batch]] = []


def _leave_a_loop(dataset: PoseDataset) -> None:
    _loops.append(iter(make_loader(dataset, [[(0, index)] for index in range(5)], workers=2)))
    next(_loops[0])


def test_a_process_of_multiprocessing_ends_after_it_has_left_a_loop_over_a_loader(dataset: PoseDataset) -> None:
    process = multiprocessing.get_context("fork").Process(target=_leave_a_loop, args=(dataset,))
    process.start()
    process.join(60)
    code = process.exitcode
    process.kill()
    assert code == 0


def _end_beside_a_child(dataset: PoseDataset, file: Path) -> None:
    """Leave a loop while another child runs, which writes a file when the workers have ended."""
    reader, writer = os.pipe()

    def write() -> None:
        os.close(writer)
        file.write_bytes(os.read(reader, 1))

    multiprocessing.get_context("fork").Process(target=write).start()
    _leave_a_loop(dataset)
    Finalize(None, os.write, (writer, b"."), exitpriority=0)  # after the loader, which has a higher priority


def test_other_children_of_a_process_go_on_when_the_workers_of_a_loader_end(
    dataset: PoseDataset, tmp_path: Path
) -> None:
    file = tmp_path / "written"
    process = multiprocessing.get_context("fork").Process(target=_end_beside_a_child, args=(dataset, file))
    process.start()
    process.join(60)
    process.kill()
    assert file.read_bytes() == b"."


def test_a_worker_does_not_collect_objects_of_the_main_process(dataset: PoseDataset) -> None:
    start_worker = make_loader(dataset, [[(0, 0)]], workers=1).worker_init_fn
    assert start_worker is not None

    def check() -> None:
        gc.unfreeze()  # what the tests freeze in every forked process
        start_worker(0)
        assert gc.get_freeze_count() > 10_000

    assert wait_for_exit(fork_process(check)) == 0
