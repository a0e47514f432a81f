"""The order of samples, and batches with and without worker processes, also of workers that fail."""

import contextlib
import errno
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenet.data.dataset import Batch, PoseDataset, SampleKey
from posenet.data.loader import BatchLoader, TrainSampler, validation_batches
from posenet.data.store import Store
from posenet.data.store_list import SampleCounts
from posenet.errors import DataError
from posenet.settings import AugmentConfig
from tests.helpers.drawn_data import same_batches
from tests.helpers.process_runs import limit_of_time

MakeLoader = Callable[..., BatchLoader]
needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX only")
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and limits of Linux")
COUNTS = (SampleCounts(7, 7), SampleCounts(10, 4), SampleCounts(5, 12))
"""Three sets with the weights 1, 0.4 and 2.4: an epoch draws 23 of 22 samples."""


def keys(sampler: TrainSampler, epoch: int, step: int = 0) -> list[list[SampleKey]]:
    sampler.start(epoch, step)
    return list(sampler)


def indices(batches: list[list[SampleKey]]) -> list[int]:
    return [index for _, index in chain.from_iterable(batches)]


@pytest.mark.parametrize("length, batch_size, per_step", [(13, 4, 1), (29, 3, 2), (5, 5, 1)])
def test_an_epoch_is_a_permutation_of_whole_steps(length: int, batch_size: int, per_step: int) -> None:
    sampler = TrainSampler(length, batch_size, seed=0, batches_per_step=per_step)
    batches = keys(sampler, epoch=2)
    seen = indices(batches)
    assert len(set(seen)) == len(seen) and set(seen) <= set(range(length))
    assert length - len(seen) < batch_size * per_step
    assert [len(batch) for batch in batches] == [batch_size] * len(sampler)
    assert len(sampler) == sampler.steps * per_step
    assert {epoch for epoch, _ in chain.from_iterable(batches)} == {2}


@pytest.mark.parametrize("drawn", [50, 10])
def test_every_epoch_and_every_seed_has_another_order(drawn: int) -> None:
    counts = [SampleCounts(50, drawn)]
    orders = [
        indices(keys(TrainSampler(50, 5, seed, sample_counts=counts), epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len(set(map(tuple, orders))) == 4
    assert drawn == 50 or len(set(map(frozenset, orders))) == 4, "other samples too"


@pytest.mark.parametrize(
    "length, world_size, batch_size, per_step, counts",
    [(50, 4, 2, 1, ()), (50, 2, 3, 2, ()), (5, 2, 4, 1, ()), (22, 3, 2, 1, COUNTS)],
)
def test_several_processes_together_equal_one_with_the_global_batch(
    length: int, world_size: int, batch_size: int, per_step: int, counts: tuple[SampleCounts, ...]
) -> None:
    alone = TrainSampler(length, batch_size * world_size, 0, per_step, sample_counts=counts)
    shards = [
        TrainSampler(length, batch_size, 0, per_step, rank, world_size, sample_counts=counts)
        for rank in range(world_size)
    ]
    assert {shard.steps for shard in shards} == {alone.steps}
    together = zip(*(keys(shard, 1) for shard in shards))
    assert [list(chain.from_iterable(batches)) for batches in together] == keys(alone, 1)


@pytest.mark.parametrize("length, per_step, counts", [(50, 1, ()), (50, 3, ()), (22, 1, COUNTS)])
def test_an_epoch_continues_at_any_step(length: int, per_step: int, counts: tuple[SampleCounts, ...]) -> None:
    sampler = TrainSampler(length, 4, 0, per_step, sample_counts=counts)
    whole = keys(sampler, epoch=3)
    for step in range(sampler.steps + 1):
        rest = keys(sampler, 3, step)
        assert rest == whole[step * per_step :] and len(sampler) == len(rest)
    assert keys(sampler, 3) == whole


def test_one_iteration_covers_several_epochs() -> None:
    sampler = TrainSampler(50, 4, 0, batches_per_step=3)
    one_by_one = keys(sampler, 1, 2) + keys(sampler, 2) + keys(sampler, 3)
    sampler.start(1, 2, epochs=4)
    assert len(sampler) == len(one_by_one)
    assert list(sampler) == one_by_one


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_small_data_set_is_repeated_until_it_fills_one_step(world_size: int) -> None:
    shards = [TrainSampler(3, 4, 0, batches_per_step=2, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {shard.steps for shard in shards} == {1}
    seen = list(chain.from_iterable(indices(keys(shard, 0)) for shard in shards))
    counts = [sum(index % 3 == i for index in seen) for i in range(3)]
    assert sum(counts) == 8 * world_size and max(counts) - min(counts) <= 1
    assert len(set(seen)) == len(seen), "a sample has another augmentation each time"


def test_an_epoch_draws_the_configured_number_from_every_set_and_its_samples_equally_often() -> None:
    sampler = TrainSampler(22, 1, seed=0, sample_counts=COUNTS)
    counts = np.zeros(22, int)
    for epoch in range(11):
        seen = indices(keys(sampler, epoch))
        assert len(set(seen)) == 23 and max(seen) >= 22, "a sample that is repeated has another index"
        drawn = np.bincount(np.array(seen) % 22, minlength=22)
        assert [drawn[:7].sum(), drawn[7:17].sum(), drawn[17:].sum()] == [7, 4, 12]
        counts += drawn
        assert all(np.ptp(times) <= 1 for times in (counts[:7], counts[7:17], counts[17:]))


@pytest.mark.parametrize("length", [1, 8, 9])
@pytest.mark.parametrize("world_size", [1, 3])
def test_validation_covers_every_index_once_over_all_processes(length: int, world_size: int) -> None:
    batches = [validation_batches(length, 2, rank, world_size) for rank in range(world_size)]
    assert sorted(chain.from_iterable(map(indices, batches))) == list(range(length))
    assert all(1 <= len(batch) <= 2 for batch in chain.from_iterable(batches))
    assert all(epoch == 0 for epoch, _ in chain.from_iterable(chain.from_iterable(batches)))


@pytest.fixture
def dataset(store: Store) -> PoseDataset:
    return PoseDataset(store, (64, 64), augment=AugmentConfig())


@pytest.fixture
def loaders() -> Iterator[MakeLoader]:
    """Makes loaders, and closes them after the test."""
    with contextlib.ExitStack() as at_end:

        def make(*args: Any) -> BatchLoader:
            loader = BatchLoader(*args)
            at_end.callback(loader.close)
            return loader

        yield make


@pytest.mark.parametrize(
    "context",
    ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
def test_workers_load_the_same_batches_as_the_main_process(
    dataset: PoseDataset, loaders: MakeLoader, context: str
) -> None:
    batches = {}
    for workers in (0, 2):
        sampler = TrainSampler(len(dataset), batch_size=2, seed=1)
        sampler.start(epoch=1, step=1)
        loader = loaders(dataset, sampler, workers)
        if workers:
            loader._loader.multiprocessing_context = context
        batches[workers] = list(loader)
    assert len(batches[0]) == sampler.steps - 1
    assert same_batches(batches[0], batches[2])


def test_an_iteration_that_is_left_early_is_followed_by_a_whole_one(dataset: PoseDataset, loaders: MakeLoader) -> None:
    """By the same workers. Batches of several sizes are kept to the end."""
    keys = [[(epoch, i % len(dataset)) for i in range(1 + epoch * 7 % 5)] for epoch in range(30)]
    expected = list(map(dataset.__getitems__, keys))
    loader = loaders(dataset, keys, 2)
    workers = set()
    for batches in (10, 30, 30):
        kept = [batch for _, batch in zip(range(batches), loader)]
        assert same_batches(kept, expected[:batches])
        workers.add(frozenset(process.pid for process in multiprocessing.active_children()))
    assert len(workers) == 1


def test_a_loader_leaves_the_global_random_state_unchanged(dataset: PoseDataset, loaders: MakeLoader) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    list(loaders(dataset, [[(0, 0)]], 1))
    list(loaders(dataset, [[(0, 0)]], 0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]


def start(loader: BatchLoader) -> tuple[Iterator[Batch], list[BaseProcess]]:
    """An iteration whose two workers have each delivered a batch, and these workers."""
    others = multiprocessing.active_children()
    iteration = iter(loader)
    next(iteration), next(iteration)
    return iteration, [process for process in multiprocessing.active_children() if process not in others]


def test_workers_finish_their_batches_after_ctrl_c(dataset: PoseDataset, loaders: MakeLoader) -> None:
    iteration, workers = start(loaders(dataset, [[(0, 0)]] * 40, 2))
    for worker in workers:
        os.kill(worker.pid or 0, signal.SIGINT)
    assert len(list(iteration)) == 38


@needs_signals
def test_a_killed_worker_ends_the_iteration_with_one_error(dataset: PoseDataset, loaders: MakeLoader) -> None:
    """Within seconds, and not before the next batch is asked for."""
    iteration, workers = start(loaders(dataset, [[(0, 0)]] * 40, 2))
    workers[0].kill()
    workers[0].join()
    with limit_of_time(30), pytest.raises(DataError, match="worker") as raised:
        list(iteration)
    assert "\n" not in str(raised.value) and "data.workers" in str(raised.value)


@needs_signals
def test_closing_ends_all_workers_also_stopped_ones(dataset: PoseDataset) -> None:
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    other.start()
    loader = BatchLoader(dataset, [[(0, 0)]] * 8, 2)
    _, workers = start(loader)
    os.kill(workers[1].pid or 0, signal.SIGSTOP)
    with limit_of_time(40):
        loader.close()
    assert len(workers) == 2 and not any(worker.is_alive() for worker in workers)
    assert other.is_alive()
    other.kill()


@pytest.mark.parametrize(
    "workers, error",
    [
        (
            1,
            RuntimeError("unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device"),
        ),
        (1, OSError(errno.EMFILE, os.strerror(errno.EMFILE))),
        (1, OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))),
        (1, MemoryError()),
        (0, RuntimeError("can't start new thread")),
    ],
)
def test_what_the_system_refuses_is_one_line_with_a_remedy(
    dataset: PoseDataset, loaders: MakeLoader, error: Exception, workers: int
) -> None:
    """Also where a worker has sent the error, with its traceback."""

    def fail(batch: Batch) -> Batch:
        raise error

    loader = loaders(dataset, [[(0, 0)]], workers)
    loader._loader.collate_fn = fail
    with limit_of_time(30), pytest.raises(DataError, match="data.workers") as raised:
        list(loader)
    assert "\n" not in str(raised.value)


def test_an_error_of_the_program_keeps_its_class_and_its_traceback(dataset: PoseDataset, loaders: MakeLoader) -> None:
    def fail(batch: Batch) -> Batch:
        raise LookupError("a fault")

    loader = loaders(dataset, [[(0, 0)]], 1)
    loader._loader.collate_fn = fail
    with pytest.raises(LookupError, match="Traceback"):
        list(loader)


@needs_linux
@pytest.mark.parametrize("kind, number", [("NPROC", 3), ("NPROC", 7), ("NOFILE", 3), ("NOFILE", 40)])
def test_workers_that_cannot_all_be_started_do_not_hold_the_program(
    dataset: PoseDataset, tmp_path: Path, kind: str, number: int
) -> None:
    """Some have started already when the system refuses the next process, a thread, or an open file."""
    import resource

    def iterate() -> None:
        if os.getuid() == 0:
            os.setresuid(54321, 54321, 54321)  # the processes of root are not limited
        limit = number if kind == "NPROC" else number + max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (limit, limit))
        try:
            list(BatchLoader(dataset, [[(0, 0)]] * 100, 4))
        except DataError as error:
            assert "data.workers" in str(error) and "\n" not in str(error)
            sys.exit(2)

    with limit_of_time(100):
        program = multiprocessing.get_context("fork").Process(target=iterate)  # its end waits for its children
        program.start()
        program.join()
    assert program.exitcode == 2
