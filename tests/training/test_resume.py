"""A run that is interrupted and resumed again and again ends, to the bit, as if it had never been interrupted."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.devices import roll_call
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.synthetic.dataset import write_dataset
from posenet.training.trainer import Trainer
from tests.helpers.drawn_data import build_both
from tests.helpers.process_groups import run_in_processes
from tests.helpers.process_runs import (
    Interruption,
    assert_same_run,
    random_interruptions,
    read_final_checkpoints,
    run_in_fork,
    skipped_steps,
    start_or_resume,
)
from tests.helpers.tiny_training import CPU

Stores = dict[str, Path]

SHORT = ("train.epochs=2", "train.patience=0", "guard.threshold=25")
"""Settings of two epochs in which the loss guard skips some steps."""


@pytest.fixture(scope="session")
def larger_stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Stores with about ten steps in an epoch."""
    folder = tmp_path_factory.mktemp("larger")
    write_dataset(folder, train=16, val=3, seed=7, workers=1)
    return build_both(folder)


def count_steps(folder: Path) -> int:
    """The steps of a finished run."""
    return read_final_checkpoints(folder)["last"]["progress"]["total_steps"]


def count_steps_of_newest(folder: Path) -> int:
    """The steps of the newest checkpoint."""
    newest = CheckpointFolder(folder).newest_intact()
    return newest[1]["progress"]["total_steps"] if newest else 0


def run_with_interruptions(stores: Stores, folder: Path, interruptions: list[Interruption], *overrides: str) -> None:
    """Make a run that is resumed after each interruption until it ends."""
    for interruption in interruptions:
        expected_status = -signal.SIGKILL if interruption.kind == "SIGKILL" else 0
        assert run_in_fork(stores, folder, *overrides, interruption=interruption) == expected_status, interruption
    assert run_in_fork(stores, folder, *overrides) == 0


def run_two_processes(stores: Stores, folder: Path, *overrides: str, interruption: Interruption | None = None) -> None:
    def start_or_resume_rank(runtime: Runtime) -> None:
        start_or_resume(runtime, stores, folder, *overrides, interruption=interruption)

    run_in_processes(2, folder.with_suffix(".results"), start_or_resume_rank)


def run_two_processes_with_interruptions(
    stores: Stores, folder: Path, interruptions: list[Interruption], *overrides: str
) -> None:
    for interruption in interruptions:
        if interruption.kind == "SIGKILL":
            with pytest.raises(TrainingError, match=f"rank {interruption.rank} of 2 was killed by SIGKILL"):
                run_two_processes(stores, folder, *overrides, interruption=interruption)
        else:
            run_two_processes(stores, folder, *overrides, interruption=interruption)
    run_two_processes(stores, folder, *overrides)


def test_a_run_that_is_interrupted_in_every_way_ends_like_an_uninterrupted_one(stores: Stores, tmp_path: Path) -> None:
    assert run_in_fork(stores, tmp_path / "uninterrupted", *SHORT) == 0
    interruptions = [
        Interruption("SIGKILL", 2),
        Interruption("SIGINT", 3),
        Interruption("max-steps", 4),
        Interruption("SIGTERM", 5),
    ]
    run_with_interruptions(stores, tmp_path / "interrupted", interruptions, *SHORT)
    assert_same_run(tmp_path / "interrupted", tmp_path / "uninterrupted")
    assert skipped_steps(tmp_path / "uninterrupted")


def test_a_run_of_two_processes_of_which_one_is_killed_ends_like_an_uninterrupted_one(
    stores: Stores, tmp_path: Path
) -> None:
    overrides = (*SHORT, "optim.accumulate=1", "checkpoint.every_steps=2")
    interruptions = [Interruption("SIGKILL", 5, rank=1)]
    run_two_processes(stores, tmp_path / "uninterrupted", *overrides)
    run_two_processes_with_interruptions(stores, tmp_path / "interrupted", interruptions, *overrides)
    assert_same_run(tmp_path / "interrupted", tmp_path / "uninterrupted")


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_runs_with_random_interruptions_end_like_an_uninterrupted_one(
    larger_stores: Stores, tmp_path: Path, workers: int
) -> None:
    setting = f"data.workers={workers}"
    uninterrupted = tmp_path / "uninterrupted"
    assert run_in_fork(larger_stores, uninterrupted, setting) == 0
    rng = random.Random(workers)
    for number in range(8):
        interruptions = random_interruptions(rng, count_steps(uninterrupted), count=6)
        run_with_interruptions(larger_stores, tmp_path / str(number), interruptions, setting)
        assert_same_run(tmp_path / str(number), uninterrupted)


@pytest.mark.parametrize(
    "function, call, saved_steps",
    [
        ("all_reduce_sum", 3, 2),  # in the vote of step 3, after its forward and backward passes
        ("vote", 5, 2),  # after step 2: one vote before the epoch, two in each step
        ("gather_objects", 1, 2),  # when the checkpoint of step 2 is due
        ("broadcast_tensors", 1, 3),  # before the validation, which follows step 3
        ("gather_objects", 2, 3),  # when the checkpoint of the epoch is due
    ],
)
def test_rank_0_saves_its_last_step_wherever_it_loses_the_other_process(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int, saved_steps: int
) -> None:
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 0.1)
    overrides = ("train.epochs=2", "train.patience=0", "optim.accumulate=1", "checkpoint.every_steps=2")
    folder = tmp_path / "interrupted"

    def train_and_lose_rank_1(runtime: Runtime) -> None:
        def die_in_call(trainer: Trainer) -> None:
            if runtime.rank == 1:
                setattr(runtime, function, kill_in_call(getattr(runtime, function), call))

        start_or_resume(runtime, stores, folder, *overrides, on_start=die_in_call)

    with pytest.raises(TrainingError, match="rank 1 of 2 was killed by SIGKILL"):
        run_in_processes(2, tmp_path / "results", train_and_lose_rank_1)
    assert count_steps_of_newest(folder) == saved_steps
    run_two_processes(stores, folder, *overrides)
    run_two_processes(stores, tmp_path / "uninterrupted", *overrides)
    assert_same_run(folder, tmp_path / "uninterrupted")


def kill_in_call(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """A function that kills this process in its call number ``number``, counted from 1."""
    calls = 0

    def call_or_die(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)

    return call_or_die


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_runs_of_two_processes_with_random_interruptions_end_like_an_uninterrupted_one(
    larger_stores: Stores, tmp_path: Path, workers: int
) -> None:
    setting = f"data.workers={workers}"
    uninterrupted = tmp_path / "uninterrupted"
    run_two_processes(larger_stores, uninterrupted, setting)
    rng = random.Random(workers)
    for number in range(4):
        interruptions = random_interruptions(rng, count_steps(uninterrupted), count=4, ranks=2)
        run_two_processes_with_interruptions(larger_stores, tmp_path / str(number), interruptions, setting)
        assert_same_run(tmp_path / str(number), uninterrupted)


def test_a_run_continues_with_another_number_of_processes_and_another_batch_size_and_logs_both(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    overrides = ("train.epochs=2", "train.patience=0")
    first_part = Interruption("max-steps", 2)
    second_part = Interruption("max-steps", 3)
    run_two_processes(stores, folder, *overrides, "optim.accumulate=1", interruption=first_part)
    _, state = CheckpointFolder(folder).newest_intact()
    assert len(state["random"]) == 2
    with caplog.at_level("INFO"):
        start_or_resume(Runtime(CPU), stores, folder, *overrides, "train.batch_size=3", interruption=second_part)
    assert "had 2 processes and continues with 1" in caplog.text
    assert "An epoch had 3 steps and now has 2: step 2 of it becomes step 1" in caplog.text
    assert count_steps(folder) == 3
