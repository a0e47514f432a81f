"""A process that is killed while it saves leaves complete checkpoints, and the next save succeeds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from tests.helpers.process_runs import fork_process, wait_for_exit

FILE_CALLS = ("fsync", "replace", "link", "unlink")
"""Functions of ``os`` with which a save changes files."""
MAX_CALLS = 40
"""More calls of these functions than a save makes."""


def save(folder: CheckpointFolder, step: int) -> None:
    folder.save({"step": step, "model": {"weight": torch.full((50_000,), float(step))}}, step, best=True)


def folder_with_checkpoints(path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(path, keep=2)
    for step in (1, 2):
        save(folder, step)
    return folder


def assert_complete(folder: CheckpointFolder, steps: set[int]) -> None:
    """Every checkpoint can be read, ``last.pth`` is of one of the steps, and the next save leaves no other files."""
    states = {path.name: read_checkpoint(path) for path in folder.path.glob("*.pth")}
    for state in states.values():
        assert (state["model"]["weight"] == state["step"]).all()
    assert states["last.pth"]["step"] in steps
    save(folder, 4)
    assert read_checkpoint(folder.last)["step"] == 4
    assert not list(folder.path.glob(".*"))


def kill_at_call(number: int, after: bool) -> Callable[[], None]:
    """Kill this process before or after the call with this number of any of ``FILE_CALLS``."""
    calls = 0

    def replace_call(name: str) -> None:
        function = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            kill_now = calls == number
            if kill_now and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **options)
            finally:
                if kill_now:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, call)

    return lambda: [replace_call(name) for name in FILE_CALLS]  # type: ignore[return-value]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_change_of_a_file_costs_at_most_the_new_checkpoint(tmp_path: Path, after: bool) -> None:
    statuses = []
    for number in range(1, MAX_CALLS):
        folder = folder_with_checkpoints(tmp_path / str(number))
        install = kill_at_call(number, after)

        def save_and_die(folder: CheckpointFolder = folder, install: Callable[[], None] = install) -> None:
            install()
            save(folder, 3)

        statuses.append(wait_for_exit(fork_process(save_and_die)))
        assert_complete(folder, {2, 3})
        if statuses[-1] == 0:  # the save has made fewer calls
            break
    assert statuses[-1] == 0 and set(statuses[:-1]) == {-signal.SIGKILL} and len(statuses) > 5


@pytest.mark.parametrize("kills", [10, pytest.param(300, marks=pytest.mark.torture)])
def test_a_kill_at_a_random_moment_of_a_save_leaves_complete_checkpoints(tmp_path: Path, kills: int) -> None:
    rng = random.Random(5)
    folder = folder_with_checkpoints(tmp_path)
    for _ in range(kills):
        pid = fork_process(lambda: [save(folder, 3) for _ in range(999)])
        time.sleep(rng.uniform(0, 0.04))
        os.kill(pid, signal.SIGKILL)
        assert wait_for_exit(pid) == -signal.SIGKILL
        assert_complete(folder, {2, 3, 4})
