"""The input of a run: dead workers, positions, and samples that cannot be read."""

from __future__ import annotations

import functools
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from posenet.data.dataset import Batch
from posenet.data.sampler import TrainSampler
from posenet.devices.parallel import Runtime
from posenet.errors import DataError
from posenet.training.batches import RestartingLoader, SpeedMeter, StepBatches, too_many_unreadable
from tests.helpers.drawn_data import flip_bit
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import AfterStep, Stores, last, train_tiny, weights

Key = tuple[int, int]
ONE_EPOCH = "train.epochs=1"


def collate(keys: list[Key]) -> Batch:
    """A batch whose image ids are the indices of its keys."""
    images = torch.zeros(len(keys), 2, 2, 3, dtype=torch.uint8)
    empty = torch.zeros(len(keys), 0)
    return Batch(images, empty, empty, empty, torch.tensor([index for _, index in keys]))


class Keys(Dataset[Key]):
    """Samples that are their keys."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key) -> Key:
        return key


def make(length: int, accumulate: int = 1, kind: Callable[..., DataLoader[Batch]] = DataLoader) -> RestartingLoader:
    """A loader of batches of two samples."""
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    return RestartingLoader(lambda: kind(Keys(length), batch_sampler=sampler, collate_fn=collate), sampler, length)


def ids(batches: list[Batch]) -> list[list[int]]:
    return [batch.image_ids.tolist() for batch in batches]


def expected_steps(length: int, accumulate: int, epoch: int) -> list[list[list[int]]]:
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    sampler.start(epoch)
    batches = [[index for _, index in keys] for keys in sampler]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_stream_has_the_batches_of_every_position(accumulate: int) -> None:
    """In order, and after a jump or after it was closed."""
    loader = make(60, accumulate)
    stream = StepBatches(loader, loader.sampler, accumulate, epochs=3)
    expected = [expected_steps(60, accumulate, epoch) for epoch in range(3)]
    steps = stream.steps_per_epoch
    for epoch in range(3):
        assert [ids(stream.take_step(epoch, step)) for step in range(steps)] == expected[epoch]
    assert stream.meter.samples == 3 * steps * accumulate * 2
    for epoch, step in ((1, 7), (0, 2), (0, 3)):
        assert ids(stream.take_step(epoch, step)) == expected[epoch][step]
    stream.close()
    assert ids(stream.take_step(2, 1)) == expected[2][1]


def test_speed_is_measured_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 2)  # two seconds from one look at it to the next
    monkeypatch.setattr("posenet.training.batches.time", SimpleNamespace(monotonic=clock.__next__))
    meter = SpeedMeter()
    for samples in (8, 2):
        meter.samples = samples
        meter.seconds_waited = 0.5
        assert meter.read() == {"samples_per_s": samples / 2, "data_wait": 0.25}
    assert (meter.samples, meter.seconds_waited) == (0, 0)


def test_closing_ends_the_workers_and_another_step_starts_new_ones() -> None:
    others = set(multiprocessing.active_children())
    loader = make(20, kind=functools.partial(DataLoader, num_workers=1, multiprocessing_context="fork"))
    stream = StepBatches(loader, loader.sampler, 1, epochs=1)
    for step in range(2):
        assert ids(stream.take_step(0, step)) == expected_steps(20, 1, epoch=0)[step]
        assert set(multiprocessing.active_children()) - others
        stream.close()
        assert set(multiprocessing.active_children()) <= others


class WorkersDie(DataLoader[Batch]):
    """A loader whose worker is killed after every batch, which is noticed at once."""

    work: tuple[Any, int] = time.sleep, 60

    def __iter__(self) -> Any:
        target, argument = self.work
        worker = multiprocessing.get_context("fork").Process(target=target, args=(argument,), daemon=True)
        worker.start()
        return self._load_one(worker)

    def _load_one(self, worker: BaseProcess) -> Iterator[Batch]:
        for keys in self.batch_sampler:
            yield collate(keys)
            worker.kill()
            raise RuntimeError("a worker has been killed")


class WorkersEnd(WorkersDie):
    """A loader whose worker ends before the first batch."""

    work = os._exit, 3

    def _load_one(self, worker: BaseProcess) -> Iterator[Batch]:
        worker.join()
        raise RuntimeError("a worker has ended")
        yield


def test_workers_may_die_often_if_batches_come_in_between(caplog: pytest.LogCaptureFixture) -> None:
    loader = make(20, kind=WorkersDie)
    assert [ids([batch]) for batch in loader] == expected_steps(20, 1, epoch=0)
    assert "a data worker was ended by SIGKILL; the workers are restarted" in caplog.text
    loader.close()


def test_workers_that_die_again_and_again_end_with_one_error(caplog: pytest.LogCaptureFixture) -> None:
    others = set(multiprocessing.active_children())  # of loaders that other tests have not closed
    with pytest.raises(DataError, match="died 3 times without a batch in between, the last ended with status 3; "):
        list(make(20, kind=WorkersEnd))
    assert caplog.text.count("a data worker ended with status 3; the workers are restarted") == 2
    assert set(multiprocessing.active_children()) <= others


def test_the_limit_of_unreadable_samples_is_rounded_up_and_may_be_reached() -> None:
    assert too_many_unreadable(2, num_samples=150, max_share=0.01) is None
    assert "more than 2 of 150 samples cannot be read" in str(too_many_unreadable(3, 150, 0.01))


@pytest.fixture
def damaged(stores: Stores, tmp_path: Path) -> Stores:
    path = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], path)
    flip_bit(path, "images", 0)
    return stores | {"train": path}


def test_replaced_samples_are_logged_and_counted_once_also_after_resuming(damaged: Stores, tmp_path: Path) -> None:
    """The stopped step's samples are read again by the resumed run."""
    settings = ("data.max_unreadable=0.9", "checkpoint.every_steps=1", "checkpoint.keep=99", ONE_EPOCH)
    train_tiny(damaged, tmp_path / "whole", *settings, max_steps=6)
    for steps in (1, 3, 6):
        train_tiny(damaged, tmp_path / "parts", *settings, max_steps=steps, resume=True)
    counts = [last(tmp_path / name)["progress"]["replaced"] for name in ("whole", "parts")]
    assert counts[0] == counts[1] > 0
    assert find_differences(weights(tmp_path / "whole"), weights(tmp_path / "parts")) == []
    text = (tmp_path / "whole" / "log.txt").read_text()
    assert "image 1 (000000000001.jpg) is damaged" in text and "samples replaced by others: " in text


def test_too_many_unreadable_samples_end_the_run_saved(damaged: Stores, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"more than 0 of \d+ samples cannot be read, .* data\.max_unreadable"):
        train_tiny(damaged, tmp_path / "run", "data.max_unreadable=0")
    assert (tmp_path / "run" / "last.pth").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_of_reading_ends_all_ranks_with_the_run_saved(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    take_step = StepBatches.take_step

    def train(runtime: Runtime) -> None:
        def fail(stream: StepBatches, epoch: int, step: int) -> list[Batch]:
            if step == 2 and runtime.rank == ranks - 1:
                raise OSError("the disk is gone")
            return take_step(stream, epoch, step)

        monkeypatch.setattr(StepBatches, "take_step", fail)
        train_tiny(stores, tmp_path / "run", runtime=runtime)

    errors = errors_in_processes(ranks, tmp_path / "out", train)
    assert errors[-1] == "DataError: cannot read the data: the disk is gone"
    assert ranks == 1 or errors[0].startswith("OtherRankError: ")
    assert last(tmp_path / "run")["progress"]["total_steps"] == 2


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_loses_and_repeats_nothing(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = set(multiprocessing.active_children())  # on a busy machine, a worker of an earlier test may still end

    def kill() -> None:
        worker = next(process for process in multiprocessing.active_children() if process not in others)
        os.kill(worker.pid or 0, signal.SIGKILL)

    train_tiny(stores, tmp_path / "whole", ONE_EPOCH, "inference.height=64")
    with caplog.at_level(logging.WARNING):
        settings = ONE_EPOCH, "data.workers=2", "inference.height=64"
        train_tiny(stores, tmp_path / "run", *settings, callbacks=[AfterStep(1, kill)])
    message = "a data worker was ended by SIGKILL; the workers are restarted and nothing is lost"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == [message]
    assert set(multiprocessing.active_children()) <= others
    assert find_differences(weights(tmp_path / "run"), weights(tmp_path / "whole")) == []
