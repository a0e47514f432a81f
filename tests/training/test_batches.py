"""The input of a run: positions, workers that fail, and samples that cannot be read."""

import errno
import itertools
import multiprocessing
import os
import shutil
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from posenet.data.dataset import Batch
from posenet.data.loader import BatchLoader, TrainSampler
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, DataError
from posenet.training import batches, validation
from posenet.training.batches import StepBatches, too_many_unreadable
from tests.helpers.drawn_data import flip_bit
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.process_runs import find_differences, limit_of_time
from tests.helpers.tiny_training import AfterStep, Stores, last, train_tiny, weights

Key = tuple[int, int]
ONE_EPOCH = "train.epochs=1"


def collate(keys: list[Key]) -> Batch:
    """A batch whose image ids are the indices of its keys."""
    images = torch.zeros(len(keys), 2, 2, 3, dtype=torch.uint8)
    empty = torch.zeros(len(keys), 0)
    return Batch(images, empty, empty, empty, torch.tensor([index for _, index in keys]))


class Keys(Dataset[Batch]):
    """Batches of samples that are their keys."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, keys: list[Key]) -> Batch:
        return collate(keys)


def make_stream(length: int, accumulate: int = 1, epochs: int = 1, workers: int = 0) -> StepBatches:
    """Steps with batches of two samples."""
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    return StepBatches(BatchLoader(Keys(length), sampler, workers), sampler, accumulate, epochs)


def ids(batches: list[Batch]) -> list[list[int]]:
    return [batch.image_ids.tolist() for batch in batches]


def expected_steps(length: int, accumulate: int, epoch: int) -> list[list[list[int]]]:
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    sampler.start(epoch)
    batches = [[index for _, index in keys] for keys in sampler]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_stream_has_the_batches_of_every_position_and_measures_its_speed(
    accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, and after a jump. The clock ticks whenever it is read: before and after each step."""
    monkeypatch.setattr(batches.time, "monotonic", itertools.count().__next__)
    stream = make_stream(60, accumulate, epochs=3)
    expected = [expected_steps(60, accumulate, epoch) for epoch in range(3)]
    steps = stream.steps_per_epoch
    for epoch in range(3):
        assert [ids(stream.take_step(epoch, step)) for step in range(steps)] == expected[epoch]
    seconds = 2 * 3 * steps + 1
    expected_speed = {"samples_per_s": 3 * steps * accumulate * 2 / seconds, "data_wait": 3 * steps / seconds}
    assert stream.read_speed() == expected_speed and stream.read_speed()["samples_per_s"] == 0
    for epoch, step in ((1, 7), (0, 2), (0, 3)):
        assert ids(stream.take_step(epoch, step)) == expected[epoch][step]


def test_workers_go_on_after_a_jump_and_end_when_the_stream_is_closed() -> None:
    others = set(multiprocessing.active_children())
    stream = make_stream(20, workers=1)
    workers = []
    for step in (0, 4, 1):
        assert ids(stream.take_step(0, step)) == expected_steps(20, 1, epoch=0)[step]
        workers.append(set(multiprocessing.active_children()) - others)
    assert len(workers[0]) == 1 and workers[0] == workers[1] == workers[2]
    stream.close()
    assert set(multiprocessing.active_children()) <= others


def test_the_limit_of_unreadable_samples_is_rounded_up_and_may_be_reached() -> None:
    assert too_many_unreadable(2, num_samples=150) is None
    assert "more than 2 of 150 samples cannot be read" in str(too_many_unreadable(3, 150))


@pytest.fixture
def damaged(stores: Stores, tmp_path: Path) -> Stores:
    path = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], path)
    flip_bit(path, "images", 0)
    return stores | {"train": path}


def test_replaced_samples_are_logged_and_counted_once_also_after_resuming(
    damaged: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped step's samples are read again by the resumed run."""
    monkeypatch.setattr(batches, "MAX_UNREADABLE_SAMPLES", 0.9)
    settings = ("checkpoint.every_steps=1", "checkpoint.keep=99", ONE_EPOCH)
    train_tiny(damaged, tmp_path / "whole", *settings, max_steps=6)
    for steps in (3, 6):
        train_tiny(damaged, tmp_path / "parts", *settings, max_steps=steps, resume=True)
    counts = [last(tmp_path / name)["progress"]["replaced"] for name in ("whole", "parts")]
    assert counts[0] == counts[1] > 0
    assert find_differences(weights(tmp_path / "whole"), weights(tmp_path / "parts")) == []
    text = (tmp_path / "whole" / "log.txt").read_text()
    assert "image 1 (000000000001.jpg) is damaged" in text and "samples replaced by others: " in text


def test_too_many_unreadable_samples_end_the_run_saved(
    damaged: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_UNREADABLE_SAMPLES", 0.0)
    with pytest.raises(DataError, match=r"more than 0 of \d+ samples cannot be read"):
        train_tiny(damaged, tmp_path / "run", "train.seed=6")
    assert last(tmp_path / "run")["progress"]["total_steps"] > 0


def test_an_error_of_reading_ends_all_ranks_with_the_run_saved(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step = StepBatches.take_step

    def train(runtime: Runtime) -> None:
        def fail(stream: StepBatches, epoch: int, step: int) -> list[Batch]:
            if step == 2 and runtime.rank == 1:
                raise OSError("the disk is gone")
            return take_step(stream, epoch, step)

        monkeypatch.setattr(StepBatches, "take_step", fail)
        train_tiny(stores, tmp_path / "run", "guard.threshold=1e-6", runtime=runtime)

    errors = errors_in_processes(2, tmp_path / "out", train)
    assert errors[-1] == "DataError: cannot read the data: the disk is gone"
    assert errors[0].startswith("OtherRankError: ")
    state = last(tmp_path / "run")
    assert (state["progress"]["total_steps"], state["guard"]["bad_in_a_row"]) == (2, 2), "also after bad steps"


def workers_beside(others: set[BaseProcess]) -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process not in others]


WITH_WORKERS = (ONE_EPOCH, "data.workers=2", "inference.height=64")


@pytest.mark.parametrize("place", ["epoch", "validation"])
def test_a_run_whose_worker_is_killed_ends_saved_and_resumes_exactly(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    others = set(multiprocessing.active_children())

    def kill() -> None:
        for worker in workers_beside(others):
            os.kill(worker.pid or 0, signal.SIGKILL)

    compute_losses = validation.compute_losses

    def kill_in_validation(model: nn.Module, batch: Batch, runtime: Runtime) -> torch.Tensor:
        kill()
        return compute_losses(model, batch, runtime)

    callbacks = [AfterStep(3, kill)] if place == "epoch" else []
    if place == "validation":
        monkeypatch.setattr(validation, "compute_losses", kill_in_validation)
    with limit_of_time(60), pytest.raises(DataError, match="the data workers failed"):
        train_tiny(stores, tmp_path / "run", *WITH_WORKERS, callbacks=callbacks)
    monkeypatch.undo()
    assert workers_beside(others) == []
    steps = last(tmp_path / "run")["progress"]["total_steps"]
    assert steps == 7 if place == "validation" else 3 <= steps < 7
    with limit_of_time(60):
        train_tiny(stores, tmp_path / "run", *WITH_WORKERS, resume=True)
        train_tiny(stores, tmp_path / "whole", ONE_EPOCH, "inference.height=64")
    assert find_differences(weights(tmp_path / "run"), weights(tmp_path / "whole")) == []
    assert find_differences(last(tmp_path / "run")["progress"], last(tmp_path / "whole")["progress"]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_for_the_workers_too_stops_the_run_saved(
    stores: Stores, tmp_path: Path, number: signal.Signals
) -> None:
    """As Ctrl-C in a terminal does, and SLURM."""
    others = set(multiprocessing.active_children())

    def stop_all() -> None:
        for worker in workers_beside(others):
            os.kill(worker.pid or 0, number)
        os.kill(os.getpid(), number)

    with limit_of_time(60):
        result = train_tiny(stores, tmp_path / "run", *WITH_WORKERS, callbacks=[AfterStep(3, stop_all)])
        assert result.stopped and result.steps == 3 and workers_beside(others) == []
        assert train_tiny(stores, tmp_path / "run", *WITH_WORKERS, resume=True, max_steps=4).steps == 4


def test_a_run_whose_workers_cannot_be_started_leaves_no_checkpoint_before_its_first_step(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the same command starts it when the cause is removed."""
    others = set(multiprocessing.active_children())
    fork = os.fork
    started = 0

    def refuse_second() -> int:
        nonlocal started
        started += 1
        if started == 2:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", refuse_second)
    with limit_of_time(60), pytest.raises(DataError, match="data.workers"):
        train_tiny(stores, tmp_path / "run", *WITH_WORKERS)
    assert workers_beside(others) == []
    with limit_of_time(60):
        assert train_tiny(stores, tmp_path / "run", *WITH_WORKERS, max_steps=1).steps == 1


FAILING = """
calls = 0

def spoil(sample, generator):
    global calls
    calls += 1
    if calls > 12:  # after the sheet of samples, and some steps
        raise LookupError("no such colour")
    return sample
"""


def test_an_error_of_the_users_function_ends_the_run_saved_and_names_it(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "my_colours"
    (tmp_path / f"{module}.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    settings = f"data.transform={module}:spoil", "data.workers=2"
    with limit_of_time(60), pytest.raises(ConfigError, match=r"data.transform .*image \d+.*LookupError") as raised:
        train_tiny(stores, tmp_path / "run", *settings)
    assert f"{module}.py, line 8" in str(raised.value) and "\n" not in str(raised.value)
    assert last(tmp_path / "run")["progress"]["total_steps"] > 0
