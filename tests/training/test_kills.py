"""Runs that are killed again and again, while they save and at any moment, become what they would have been."""

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
from tests.helpers.process_runs import assert_same_run, fork_process, start_or_resume, wait_for_exit
from tests.helpers.tiny_training import CPU

OFTEN = ("train.patience=0", "checkpoint.every_steps=1")


def killed_after(seconds: Callable[[], float], task: Callable[[Callable[[], None]], Any]) -> int:
    """Run a task in a process that is killed some time after it first says so; how the process ended."""
    said, say = os.pipe()
    pid = fork_process(lambda: (os.close(said), task(lambda: os.write(say, b"!"))))
    os.close(say)
    if os.read(said, 1):
        time.sleep(seconds())
        os.kill(pid, signal.SIGKILL)
    os.close(said)
    return wait_for_exit(pid)


def assert_intact(folder: Path) -> None:
    """Whatever stands under a checkpoint's name is a whole checkpoint."""
    for path in folder.glob("*.pth"):
        with open(path, "rb") as file:
            assert verify_checksum(file), path


def kill_while_saving(stores, folder: Path, rng: random.Random, kills: int, *overrides: str) -> Counter:
    """Kill so many lives of one run while each writes its first or second checkpoint, then let it end.

    Gives in how many cases the kill left half a file behind, came between two names, or came late.
    """
    met: Counter = Counter()
    for _ in range(kills):
        which = rng.choice((1, 2))

        def aim(trainer: Any, say: Callable[[], None]) -> None:
            save, saves = trainer.folder.save, []

            def announced(*args: Any) -> None:
                saves.append(1)
                if len(saves) == which:
                    say()
                save(*args)

            trainer.folder.save = announced

        def life(say: Callable[[], None]) -> None:
            start_or_resume(Runtime(CPU), stores, folder, *overrides, on_start=lambda trainer: aim(trainer, say))

        before = newest_step(folder)
        status = killed_after(lambda: rng.uniform(0, SAVING), life)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert_intact(folder)
        assert newest_step(folder) >= before
        numbered = CheckpointFolder(folder).history()
        if list(folder.glob(".*.tmp")):
            met["half a file"] += 1
        elif (numbered and not (folder / "last.pth").exists()) or (
            numbered and not numbered[0].samefile(folder / "last.pth")
        ):
            met["between two names"] += 1
        else:
            met["before or after"] += 1
    return met


SAVING = 0.04
"""Seconds, or a little less, that a save of these tests takes: kills fall into it evenly."""


def newest_step(folder: Path) -> int:
    found = CheckpointFolder(folder).newest_intact()
    return found[1]["progress"]["total_steps"] if found else 0


def finish(stores, folder: Path, *overrides: str) -> None:
    assert wait_for_exit(fork_process(lambda: start_or_resume(Runtime(CPU), stores, folder, *overrides))) == 0


def test_killed_while_it_saves(stores, tmp_path):
    overrides = (*OFTEN, "train.epochs=1")
    finish(stores, tmp_path / "whole", *overrides)
    kill_while_saving(stores, tmp_path / "run", random.Random(1), 3, *overrides)
    finish(stores, tmp_path / "run", *overrides)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_each_system_call_of_a_save(tmp_path, after):
    state, at, status = {"w": torch.randn(5000)}, 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        folder, at = CheckpointFolder(tmp_path / f"{at}"), at + 1
        folder.save(state | {"step": 1}, 1, best=True)
        status = wait_for_exit(
            fork_process(lambda: (kill_at_call(at, after), folder.save(state | {"step": 2}, 2, best=True)))
        )
        assert_intact(folder.path)
        found = folder.newest_intact()[1]["step"]
        assert found in (1, 2) and (found == 2 or status)
        folder.save(state | {"step": 3}, 3)
        assert folder.newest_intact()[1]["step"] == 3 and not list(folder.path.glob(".*.tmp"))
    assert status == 0 and at > 12


def kill_at_call(at: int, after: bool) -> None:
    """Let this process be killed before or after its ``at``-th call that changes files, from now on."""
    calls = []

    def fatal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == at and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*args, **options)
            finally:
                if len(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in ("fsync", "replace", "link", "unlink"):
        setattr(os, name, fatal(getattr(os, name)))


@pytest.mark.torture
def test_three_hundred_kills_while_saving(stores, tmp_path):
    overrides, rng, met = (*OFTEN, "train.epochs=12"), random.Random(1), Counter()
    finish(stores, tmp_path / "whole", *overrides)
    run = 0
    while met.total() < 300:
        folder = tmp_path / str(run)
        met += kill_while_saving(stores, folder, rng, 40, *overrides)
        finish(stores, folder, *overrides)
        assert_same_run(folder, tmp_path / "whole")
        run += 1
    print(f"\n{met.total()} kills while saving, {run} runs: {dict(met)}")
    assert met["half a file"] >= 100


@pytest.mark.torture
def test_the_same_kills_break_what_torch_saves_alone(tmp_path):
    """Else the kills above would prove nothing."""
    rng, broken, state = random.Random(1), 0, {str(i): torch.randn(1000) for i in range(400)}

    def save(say: Callable[[], None]) -> None:
        torch.save(state, tmp_path / "plain.pth")
        say()
        while True:
            torch.save(state, tmp_path / "plain.pth")

    for _ in range(30):
        assert killed_after(lambda: rng.uniform(0, SAVING), save) == -signal.SIGKILL
        try:
            torch.load(tmp_path / "plain.pth", weights_only=True)
        except (RuntimeError, EOFError, OSError):
            broken += 1
    print(f"\n{broken} of 30 files are broken")
    assert broken >= 15


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_any_moment(stores, tmp_path, workers):
    overrides, rng, kills, run = (*OFTEN, f"data.workers={workers}"), random.Random(workers), 0, 0
    began = time.monotonic()
    finish(stores, tmp_path / "whole", *overrides)
    longest = (time.monotonic() - began) / 3
    while kills < 30:
        folder, status = tmp_path / str(run), -signal.SIGKILL
        while status == -signal.SIGKILL:
            status = killed_after(
                lambda: rng.uniform(0, longest),
                lambda say: (say(), start_or_resume(Runtime(CPU), stores, folder, *overrides)),
            )
            kills += status == -signal.SIGKILL
            assert_intact(folder)
        assert status == 0
        assert_same_run(folder, tmp_path / "whole")
        run += 1
    print(f"\n{kills} kills at any moment, {run} runs, {workers} workers")
