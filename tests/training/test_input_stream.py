"""The input of a run: dead workers, unreadable samples, and data errors on all ranks."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from posenet.checkpoints.file import read_checkpoint
from posenet.data.dataset import PoseDataset
from posenet.data.loader import Batch, make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import Store, reader
from posenet.devices.distributed import DistributedRuntime
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.training.input_stream import (
    CollectiveDataError,
    InputStream,
    RestartingLoader,
    UnreadableSampleBudget,
    close_loader,
)
from posenet.training.progress import Progress
from tests.helpers.batches import load_epoch, same_batches
from tests.helpers.drawn_data import flip_bit, make_record, write_store
from tests.helpers.process_groups import run_in_processes
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import CPU, before_step, copy_weights, tiny_trainer

Stores = dict[str, Path]
Key = tuple[int, int]

ONE_EPOCH = ("train.epochs=1", "train.batch_size=2")
PIPE_BYTES = 2**16
"""Capacity of a pipe between processes."""
TIMEOUT_SECONDS = 30


class RunResult(NamedTuple):
    completed: bool
    losses: list[float | None]
    weights: dict[str, Tensor]


def train(stores: Stores, folder: Path, *overrides: str, **options: Any) -> RunResult:
    with tiny_trainer(Runtime(CPU), stores, folder, *ONE_EPOCH, *overrides, **options) as trainer:
        completed = trainer.run()
        return RunResult(completed, trainer.losses, copy_weights(trainer))


@pytest.fixture
def damaged(stores: Stores, tmp_path: Path) -> Stores:
    """The stores, with one image and the mask of another image damaged in the training store."""
    path = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], path)
    flip_bit(path, "images", 0)
    flip_bit(path, "labels", 3)
    return stores | {"train": path}


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths of workers are noticed, and reads that failed are repeated, soon."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    monkeypatch.setattr(reader, "RETRY_SECONDS", (0.0, 0.01, 0.02))


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Makes a test that hangs fail."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"longer than {TIMEOUT_SECONDS} s"))
    signal.alarm(TIMEOUT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def restarting(loader: DataLoader[Batch]) -> RestartingLoader:
    return RestartingLoader(loader, loader.batch_sampler)


class KeySampler(list[list[Key]]):
    """A sampler with given keys of every batch; iteration leaves out the first ``skip`` batches."""

    skip = 0

    def __iter__(self) -> Iterator[list[Key]]:
        return itertools.islice(super().__iter__(), self.skip, None)


def test_unreadable_samples_are_counted_logged_and_replaced_after_resuming_too(
    damaged: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = "data.max_unreadable=0.9"
    with caplog.at_level(logging.WARNING):
        uninterrupted = train(damaged, tmp_path / "uninterrupted", setting)
    assert "image 1 (000000000001.jpg) is damaged" in caplog.text
    assert "samples replaced by others: " in caplog.text
    interrupted = train(damaged, tmp_path / "interrupted", setting, steps=2)
    assert not interrupted.completed
    last = tmp_path / "interrupted" / "last.pth"
    assert read_checkpoint(last)["progress"]["replaced"] > 0
    resumed = train(damaged, tmp_path / "interrupted", setting, resume=last)
    assert resumed.losses == uninterrupted.losses[2:]
    assert find_differences(resumed.weights, uninterrupted.weights) == []


def test_too_many_unreadable_samples_end_the_run_with_a_checkpoint(damaged: Stores, tmp_path: Path) -> None:
    with tiny_trainer(Runtime(CPU), damaged, tmp_path / "run", *ONE_EPOCH, "data.max_unreadable=0.0") as trainer:
        message = "more than 0 of .* data.max_unreadable allows; the latest: .*damaged.h5"
        with pytest.raises(CollectiveDataError, match=message):
            trainer.run()
        total_steps = trainer.progress.total_steps
        assert total_steps == len(trainer.losses)
        assert read_checkpoint(trainer.folder.last)["progress"]["total_steps"] == total_steps


def test_the_limit_of_unreadable_samples_is_rounded_up_to_whole_samples() -> None:
    budget = UnreadableSampleBudget(num_samples=6, max_share=0.01)
    budget.spend(["one"])
    with pytest.raises(CollectiveDataError, match="more than 1 of 6"):
        budget.spend(["two"])
    assert budget.count == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_of_a_store_without_readable_samples_has_no_traceback_of_a_worker(
    tmp_path: Path, workers: int
) -> None:
    path = write_store(tmp_path / "unreadable.h5", [make_record(image, people=1) for image in range(20)])
    for image in range(20):
        flip_bit(path, "labels", image)
    message = r"\Asample \d+ cannot be read, nor can 5 others .* rebuild the store\Z"
    with pytest.raises(DataError, match=message):
        load_epoch(path, workers, restarting)


def test_a_store_that_disappears_ends_the_run_with_a_checkpoint(
    stores: Stores, tmp_path: Path, short_waits: None
) -> None:
    path = tmp_path / "train.h5"
    shutil.copy(stores["train"], path)
    with tiny_trainer(Runtime(CPU), stores | {"train": path}, tmp_path / "run", *ONE_EPOCH) as trainer:
        path.unlink()
        with pytest.raises(CollectiveDataError, match="train.h5 does not exist"):
            trainer.run()
        assert trainer.folder.last.exists()


def test_workers_load_samples_of_the_next_epoch_during_the_validation(stores: Stores, tmp_path: Path) -> None:
    batches_in_progress = []

    def evaluate(*_: Any) -> dict[str, float]:
        iterator = trainer.input.loader.loader._iterator
        batches_in_progress.append(iterator._send_idx - iterator._rcvd_idx)
        return {"AP": 0.0}

    settings = ("train.batch_size=2", "train.epochs=3", "data.workers=1")
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *settings) as trainer:
        trainer.evaluate = evaluate
        assert trainer.run()
    first, second, last = batches_in_progress
    assert first > 0
    assert second > 0
    assert last == 0


def test_a_closed_input_stream_starts_new_workers_when_it_is_used_again(stores: Stores, tmp_path: Path) -> None:
    settings = ("train.batch_size=2", "train.epochs=2", "data.workers=1")
    expected = train(stores, tmp_path / "expected", *settings)
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *settings) as trainer:

        def evaluate(*_: Any) -> dict[str, float]:
            trainer.close()
            return {"AP": 0.0}

        trainer.evaluate = evaluate
        assert trainer.run()
        assert trainer.losses == expected.losses


def test_an_epoch_without_remaining_steps_starts_no_workers(stores: Stores, tmp_path: Path) -> None:
    """A run that was stopped during its validation resumes with such an epoch."""
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *ONE_EPOCH, "data.workers=1") as trainer:
        trainer.progress.step = trainer.input.steps_per_epoch
        assert trainer.train_one_epoch()
        assert not multiprocessing.active_children()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX only")
class TestDeadWorkers:
    def test_a_killed_worker_changes_no_batch(
        self, stores: Stores, caplog: pytest.LogCaptureFixture, short_waits: None
    ) -> None:
        def kill_a_worker_after_the_first_batch(loader: DataLoader[Batch]) -> Iterator[Batch]:
            for number, batch in enumerate(restarting(loader)):
                yield batch
                if number == 0:
                    os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)

        expected = load_epoch(stores["train"])
        with caplog.at_level(logging.WARNING):
            batches = load_epoch(stores["train"], workers=2, iterate=kill_a_worker_after_the_first_batch)
        assert same_batches(batches, expected)
        assert "a data worker was ended by SIGKILL" in caplog.text
        assert not multiprocessing.active_children()

    def test_a_run_whose_workers_are_killed_has_the_same_losses(
        self, stores: Stores, tmp_path: Path, short_waits: None
    ) -> None:
        expected = train(stores, tmp_path / "expected")
        killed = []
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *ONE_EPOCH, "data.workers=1") as trainer:

            def kill_worker() -> None:
                (worker,) = trainer.input.loader.loader._iterator._workers
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

            for step in range(1, trainer.input.steps_per_epoch + 1):
                before_step(trainer, step, kill_worker)
            assert trainer.run()
            assert trainer.losses == expected.losses
        assert len(set(killed)) > 1

    def test_a_worker_that_is_killed_while_it_sends_a_batch_leaves_no_partial_batch(
        self, stores: Stores, short_waits: None, time_limit: None
    ) -> None:
        keys = [(0, 0)] * 250
        with Store(stores["train"]) as store:
            loader = make_loader(PoseDataset(store, (64, 64)), KeySampler([keys] * 6), workers=1)
            batches = []
            for number, batch in enumerate(restarting(loader)):
                if number == 1:
                    time.sleep(1)  # meanwhile the worker fills the pipe, which cannot hold a batch
                    os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
                batches.append(batch)
            expected = loader.dataset.__getitems__(keys)
            close_loader(loader)
        assert expected.joints.nbytes > PIPE_BYTES
        assert same_batches(batches, [expected] * 6)

    def test_workers_that_always_die_end_the_run_with_a_checkpoint(
        self, stores: Stores, tmp_path: Path, short_waits: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        monkeypatch.setattr(PoseDataset, "read_masks_and_joints", crash)
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *ONE_EPOCH, "data.workers=1") as trainer:
            message = "died 3 times .* the last was ended by SIGSEGV; .*data.workers"
            with pytest.raises(CollectiveDataError, match=message):
                trainer.run()
            assert trainer.folder.last.exists()


def test_a_data_error_on_one_rank_ends_all_ranks_at_the_same_step_with_a_checkpoint(
    stores: Stores, tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def train_until_error(runtime: DistributedRuntime) -> tuple[str, str, int]:
        with tiny_trainer(runtime, stores, folder, *ONE_EPOCH) as trainer:
            dataset = trainer.input.loader.loader.dataset
            load_batch = dataset.__getitems__
            num_loaded = 0

            def fail_in_third_batch(keys: list[Key]) -> Batch:
                nonlocal num_loaded
                num_loaded += 1
                if num_loaded == 3:
                    raise DataError("the disk of rank 1 is gone")
                return load_batch(keys)

            if runtime.rank == 1:
                dataset.__getitems__ = fail_in_third_batch
            with pytest.raises(DataError) as caught:
                trainer.run()
            return type(caught.value).__name__, str(caught.value), trainer.progress.total_steps

    results = run_in_processes(2, tmp_path / "results", train_until_error)
    assert results == [("CollectiveDataError", "the disk of rank 1 is gone", 2)] * 2
    assert read_checkpoint(folder / "last.pth")["progress"]["total_steps"] == 2


SMALL_BATCHES = ("train.epochs=1", "train.batch_size=1", "train.input_size=128")


def test_unreadable_samples_of_any_rank_count_on_all_ranks(damaged: Stores, tmp_path: Path) -> None:
    def train_with_two_limits(runtime: DistributedRuntime) -> tuple[bool, int, str]:
        with tiny_trainer(runtime, damaged, tmp_path / "high", *SMALL_BATCHES, "data.max_unreadable=0.9") as trainer:
            completed = trainer.run()
            total_steps = trainer.progress.total_steps
        with tiny_trainer(runtime, damaged, tmp_path / "low", *SMALL_BATCHES, "data.max_unreadable=0.0") as trainer:
            with pytest.raises(CollectiveDataError) as caught:
                trainer.run()
        return completed, total_steps, str(caught.value)

    first, second = run_in_processes(2, tmp_path / "results", train_with_two_limits)
    assert first == second
    completed, _, message = first
    assert completed
    assert "more than 0 of" in message
    assert (tmp_path / "low" / "last.pth").exists()


def collate_keys(keys: list[Key]) -> Batch:
    """A batch whose image ids are the indices of its keys, and whose images have four pixels."""
    images = torch.zeros(len(keys), 2, 2, 3, dtype=torch.uint8)
    empty = torch.zeros(len(keys), 0)
    return Batch(images, empty, empty, empty, torch.tensor([index for _, index in keys]))


class Keys(Dataset[Key]):
    """A data set whose samples are their keys."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key) -> Key:
        return key


class ExitingDataset(Keys):
    """A data set whose workers exit with a status instead of loading a sample."""

    def __init__(self, length: int, status: int) -> None:
        super().__init__(length)
        self.status = status

    def __getitem__(self, key: Key) -> Key:
        os._exit(self.status)


def stream_of_keys(
    length: int, accumulate: int = 1, epochs: int = 3, runtime: Runtime | None = None
) -> tuple[InputStream, list[tuple[int, int]]]:
    """A stream of batches of two samples, and the list of the (epoch, step) at which it was positioned."""
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    loader = DataLoader(Keys(length), batch_sampler=sampler, collate_fn=collate_keys)
    positions: list[tuple[int, int]] = []
    start = sampler.start

    def record_start(epoch: int, step: int, epochs: int) -> None:
        positions.append((epoch, step))
        start(epoch, step, epochs)

    sampler.start = record_start
    stream = InputStream(
        loader, sampler, runtime or Runtime(CPU), accumulate=accumulate, epochs=epochs, max_unreadable=0.0
    )
    return stream, positions


def image_ids(stream: InputStream, progress: Progress) -> list[list[list[int]]]:
    """The image ids of each remaining step of an epoch."""
    return [[batch.image_ids.tolist() for batch in batches] for batches in stream.steps(progress)]


def expected_image_ids(length: int, accumulate: int, epoch: int) -> list[list[list[int]]]:
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    sampler.start(epoch)
    batches = [[index for _, index in keys] for keys in sampler]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_one_iteration_of_the_loader_covers_all_epochs(accumulate: int) -> None:
    stream, positions = stream_of_keys(700, accumulate)
    for epoch in range(3):
        assert image_ids(stream, Progress(epoch=epoch)) == expected_image_ids(700, accumulate, epoch)
    assert positions == [(0, 0)]


def test_the_stream_continues_where_the_progress_is() -> None:
    stream, positions = stream_of_keys(20)
    assert image_ids(stream, Progress(epoch=1, step=7)) == expected_image_ids(20, 1, epoch=1)[7:]
    assert image_ids(stream, Progress(epoch=0, step=2)) == expected_image_ids(20, 1, epoch=0)[2:]
    assert image_ids(stream, Progress(epoch=1)) == expected_image_ids(20, 1, epoch=1)
    stream.close()
    assert image_ids(stream, Progress(epoch=2)) == expected_image_ids(20, 1, epoch=2)
    assert positions == [(1, 7), (0, 2), (2, 0)]


def test_samples_are_counted_over_all_processes() -> None:
    runtime = Runtime(CPU)
    runtime.world_size = 4
    stream, _ = stream_of_keys(20, accumulate=2, runtime=runtime)
    steps = stream.steps(Progress())
    next(steps)
    next(steps)
    assert stream.meter.samples == 2 * 2 * 2 * 4
    assert 0 < stream.meter.seconds_waited < 10


def test_an_interrupted_iteration_leaves_the_sampler_complete() -> None:
    sampler = TrainSampler(20, 2, seed=0)
    loader = DataLoader(Keys(20), batch_sampler=sampler, collate_fn=collate_keys)
    iterator = iter(RestartingLoader(loader, sampler))
    next(iterator)
    next(iterator)
    iterator.close()
    assert len(list(sampler)) == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a worker")
@pytest.mark.parametrize("status", [0, 3])
def test_a_worker_that_exits_is_named_with_its_status(
    short_waits: None, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    sampler = TrainSampler(20, 2, seed=0)
    options = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(ExitingDataset(20, status), batch_sampler=sampler, collate_fn=collate_keys, **options)
    with pytest.raises(
        DataError, match=f"died 3 times without a batch in between, the last ended with status {status};"
    ):
        list(RestartingLoader(loader, sampler))
    assert caplog.text.count(f"a data worker ended with status {status}; the workers are restarted") == 2


def test_the_log_names_ten_unreadable_samples_of_a_step_and_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    budget = UnreadableSampleBudget(num_samples=100, max_share=0.5)
    with caplog.at_level(logging.WARNING):
        budget.spend([f"sample {number} is damaged" for number in range(12)])
        budget.spend([])
    named = [record.getMessage() for record in caplog.records]
    assert named[:-1] == [f"WARNING: sample {number} is damaged" for number in range(10)]
    assert named[-1] == "WARNING: samples replaced by others: 12, so far in this pass over the data 12 of at most 50"


def test_the_limit_of_unreadable_samples_may_be_reached() -> None:
    budget = UnreadableSampleBudget(num_samples=10, max_share=0.3, count=1)
    budget.spend(["one", "two"])
    assert budget.count == budget.limit == 3
    with pytest.raises(CollectiveDataError, match="more than 3 of 10 .*; the latest: three"):
        budget.spend(["three"])
