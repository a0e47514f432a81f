"""Runs that are killed again and again, while they save a checkpoint or at any moment, end as if undisturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.checksum import verify_checksum
from posenet.devices.runtime import Runtime
from posenet.training.trainer import Trainer
from tests.helpers.process_runs import assert_same_run, fork_process, run_in_fork, start_or_resume, wait_for_exit
from tests.helpers.tiny_training import CPU

Stores = dict[str, Path]
Signal = Callable[[], None]
"""Tells the parent process that the time until the kill starts."""

OFTEN = ("train.patience=0", "checkpoint.every_steps=1")
"""Settings of a run that saves a checkpoint after every step."""
SAVE_SECONDS = 0.04
"""A little less than what a save takes in these tests, so that kills are spread evenly over a save."""
FILE_CALLS = ("fsync", "replace", "link", "unlink")
"""Functions of ``os`` with which a save changes files."""


def kill_after(choose_delay: Callable[[], float], task: Callable[[Signal], Any]) -> int:
    """Run a task in a process that is killed some seconds after its first signal; return how the process ended."""
    reader, writer = os.pipe()

    def run_task() -> None:
        os.close(reader)
        task(lambda: os.write(writer, b"!"))

    pid = fork_process(run_task)
    os.close(writer)
    has_signalled = bool(os.read(reader, 1))
    if has_signalled:
        time.sleep(choose_delay())
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    return wait_for_exit(pid)


def assert_checkpoints_are_intact(folder: Path) -> None:
    for path in folder.glob("*.pth"):
        with open(path, "rb") as file:
            assert verify_checksum(file), path


def newest_step(folder: Path) -> int:
    """The step of the newest intact checkpoint; 0 without one."""
    newest = CheckpointFolder(folder).newest_intact()
    return newest[1]["progress"]["total_steps"] if newest else 0


def signal_before_save(trainer: Trainer, number: int, send_signal: Signal) -> None:
    """Call ``send_signal`` before the trainer's save number ``number``, counted from 1."""
    save = trainer.folder.save
    num_saves = 0

    def signal_and_save(*args: Any) -> None:
        nonlocal num_saves
        num_saves += 1
        if num_saves == number:
            send_signal()
        save(*args)

    trainer.folder.save = signal_and_save


def describe_kill(folder: Path) -> str:
    """At which stage of a save a process was killed, as its files show."""
    if list(folder.glob(".*.tmp")):
        return "while writing a file"
    last = folder / "last.pth"
    numbered = CheckpointFolder(folder).history()
    if numbered and not (last.exists() and numbered[0].samefile(last)):
        return "between two files"
    return "before or after"


def kill_while_saving(stores: Stores, folder: Path, rng: random.Random, kills: int, *overrides: str) -> Counter[str]:
    """Kill a run while it saves its first or second checkpoint, and resume it, up to ``kills`` times or to its end.

    Returns:
        How many kills came at which stage of a save.
    """
    stages: Counter[str] = Counter()
    for _ in range(kills):
        number = rng.choice((1, 2))

        def train(send_signal: Signal) -> None:
            def prepare(trainer: Trainer) -> None:
                signal_before_save(trainer, number, send_signal)

            start_or_resume(Runtime(CPU), stores, folder, *overrides, on_start=prepare)

        step_before = newest_step(folder)
        status = kill_after(lambda: rng.uniform(0, SAVE_SECONDS), train)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert_checkpoints_are_intact(folder)
        assert newest_step(folder) >= step_before
        stages[describe_kill(folder)] += 1
    return stages


def test_a_run_that_is_killed_while_it_saves_ends_like_an_undisturbed_one(stores: Stores, tmp_path: Path) -> None:
    overrides = (*OFTEN, "train.epochs=1")
    assert run_in_fork(stores, tmp_path / "undisturbed", *overrides) == 0
    kill_while_saving(stores, tmp_path / "killed", random.Random(1), 3, *overrides)
    assert run_in_fork(stores, tmp_path / "killed", *overrides) == 0
    assert_same_run(tmp_path / "killed", tmp_path / "undisturbed")


def kill_this_process_at_call(number: int, after: bool) -> None:
    """Let this process be killed before or after call number ``number``, counted from 1, of ``FILE_CALLS``."""
    num_calls = 0

    def make_deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **options)
            finally:
                if num_calls == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in FILE_CALLS:
        setattr(os, name, make_deadly(getattr(os, name)))


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_a_kill_at_any_system_call_of_a_save_leaves_an_intact_checkpoint(tmp_path: Path, after: bool) -> None:
    model = {"w": torch.randn(5000)}
    number = 0
    status = -signal.SIGKILL
    while status == -signal.SIGKILL:
        number += 1
        folder = CheckpointFolder(tmp_path / str(number))
        folder.save(model | {"step": 1}, 1, best=True)

        def save_and_die() -> None:
            kill_this_process_at_call(number, after)
            folder.save(model | {"step": 2}, 2, best=True)

        status = wait_for_exit(fork_process(save_and_die))
        assert_checkpoints_are_intact(folder.path)
        step = folder.newest_intact()[1]["step"]
        assert step in (1, 2)
        if status == 0:
            assert step == 2
        folder.save(model | {"step": 3}, 3)
        assert folder.newest_intact()[1]["step"] == 3
        assert not list(folder.path.glob(".*.tmp"))
    assert status == 0
    assert number > 12, "a save makes at least twelve calls"


@pytest.mark.torture
def test_runs_with_three_hundred_kills_while_saving_end_like_an_undisturbed_one(stores: Stores, tmp_path: Path) -> None:
    overrides = (*OFTEN, "train.epochs=12")
    rng = random.Random(1)
    assert run_in_fork(stores, tmp_path / "undisturbed", *overrides) == 0
    stages: Counter[str] = Counter()
    num_runs = 0
    while stages.total() < 300:
        folder = tmp_path / str(num_runs)
        stages += kill_while_saving(stores, folder, rng, 40, *overrides)
        assert run_in_fork(stores, folder, *overrides) == 0
        assert_same_run(folder, tmp_path / "undisturbed")
        num_runs += 1
    print(f"\n{stages.total()} kills while saving, {num_runs} runs: {dict(stages)}")
    assert stages["while writing a file"] >= 100


@pytest.mark.torture
def test_the_same_kills_damage_files_that_torch_saves_directly(tmp_path: Path) -> None:
    """Otherwise the kills above would prove nothing."""
    rng = random.Random(1)
    state = {str(i): torch.randn(1000) for i in range(400)}
    path = tmp_path / "direct.pth"

    def save_for_ever(send_signal: Signal) -> None:
        torch.save(state, path)
        send_signal()
        while True:
            torch.save(state, path)

    num_damaged = 0
    for _ in range(30):
        assert kill_after(lambda: rng.uniform(0, SAVE_SECONDS), save_for_ever) == -signal.SIGKILL
        try:
            torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, OSError):
            num_damaged += 1
    print(f"\n{num_damaged} of 30 files are damaged")
    assert num_damaged >= 15


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_runs_that_are_killed_at_any_moment_end_like_an_undisturbed_one(
    stores: Stores, tmp_path: Path, workers: int
) -> None:
    overrides = (*OFTEN, f"data.workers={workers}")
    rng = random.Random(workers)
    started = time.monotonic()
    assert run_in_fork(stores, tmp_path / "undisturbed", *overrides) == 0
    max_delay = (time.monotonic() - started) / 3
    num_kills = 0
    num_runs = 0
    while num_kills < 30:
        folder = tmp_path / str(num_runs)

        def train(send_signal: Signal) -> None:
            send_signal()
            start_or_resume(Runtime(CPU), stores, folder, *overrides)

        status = -signal.SIGKILL
        while status == -signal.SIGKILL:
            status = kill_after(lambda: rng.uniform(0, max_delay), train)
            num_kills += status == -signal.SIGKILL
            assert_checkpoints_are_intact(folder)
        assert status == 0
        assert_same_run(folder, tmp_path / "undisturbed")
        num_runs += 1
    print(f"\n{num_kills} kills at any moment, {num_runs} runs, {workers} workers")
