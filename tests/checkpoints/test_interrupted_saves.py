"""A save that is killed, or that the system refuses, leaves complete checkpoints, and the next save succeeds."""

import errno
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.tiny_training import Recorder, Stores, train_tiny
from tests.helpers.videos import full_disk

FILE_CALLS = ("open", "fsync", "replace", "link", "unlink")
"""Functions of ``os`` with which a save changes files."""


def save(folder: CheckpointFolder, step: int) -> None:
    folder.save({"step": step, "model": {"weight": torch.full((5000,), float(step))}}, step, best=True)
    folder.require_saved()


def folder_with_checkpoints(path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(path, CheckpointConfig(keep=2))
    for step in (1, 2):
        save(folder, step)
    return folder


def assert_complete(folder: CheckpointFolder, steps: set[int]) -> None:
    """Every checkpoint can be read, ``last.pth`` is of one of the steps, and the next save leaves no other files."""
    states = {path.name: read_checkpoint(path) for path in folder.path.glob("*.pth")}
    for state in states.values():
        assert (state["model"]["weight"] == state["step"]).all()
    assert states["last.pth"]["step"] in steps and states["best.pth"]["step"] in steps
    save(folder, 4)
    assert read_checkpoint(folder.last)["step"] == 4
    assert not list(folder.path.glob(".*"))


def interrupt(names: tuple[str, ...], number: int, act: Callable[[], None]) -> None:
    """Replace functions of ``os``; before their call with this number, ``act`` is called."""
    numbers = itertools.count(1)

    def replace(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(numbers) == number:
                act()
            return function(*args, **options)

        return call

    for name in names:
        setattr(os, name, replace(getattr(os, name)))


def test_a_kill_at_any_change_of_a_file_costs_at_most_the_new_checkpoint(tmp_path: Path) -> None:
    def save_and_die() -> None:
        interrupt(FILE_CALLS, number, lambda: os.kill(os.getpid(), signal.SIGKILL))
        save(folder, 3)

    template = folder_with_checkpoints(tmp_path / "template").path
    for number in itertools.count(1):
        folder = CheckpointFolder(shutil.copytree(template, tmp_path / str(number)), CheckpointConfig(keep=2))
        status = wait_for_exit(fork_process(save_and_die))
        assert_complete(folder, {2, 3})
        if status == 0:  # the save has made fewer calls
            break
        assert status == -signal.SIGKILL
    assert number > 6


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["open", "fsync", "replace", "link"])
def test_a_call_that_the_system_refuses_does_not_damage_older_checkpoints(tmp_path: Path, name: str) -> None:
    def save_without_space() -> None:
        interrupt((name,), number, refuse)
        shutil.copyfile = refuse  # type: ignore[assignment]  # else a copy replaces the link
        try:
            save(folder, 3)
        except CheckpointError as error:
            assert "\n" not in str(error) and os.strerror(errno.ENOSPC) in str(error)
            os._exit(2)

    template = folder_with_checkpoints(tmp_path / "template").path
    for number in itertools.count(1):
        folder = CheckpointFolder(shutil.copytree(template, tmp_path / str(number)), CheckpointConfig(keep=2))
        status = wait_for_exit(fork_process(save_without_space))
        assert not list(folder.path.glob(".*"))
        assert_complete(folder, {2, 3})
        if status == 0 and number > 1:  # the save has made fewer calls, or nothing has needed this one
            break
        assert status in (0, 2)
    assert number > 1


@pytest.mark.parametrize("share", [0, 0.999])
def test_a_full_disk_does_not_damage_older_checkpoints(tmp_path: Path, share: float) -> None:
    folder = folder_with_checkpoints(tmp_path)
    with (
        full_disk(int(share * folder.last.stat().st_size)),
        pytest.raises(CheckpointError, match="step-00000003.pth .*disk"),
    ):
        save(folder, 3)
    assert not list(tmp_path.glob(".*"))
    assert_complete(folder, {2})


def test_a_run_that_cannot_save_trains_on_and_ends_with_the_error(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointFolder, "_save", refuse)
    recorder = Recorder()
    with pytest.raises(CheckpointError, match="the last step .* is not saved.*No space left"):
        train_tiny(stores, tmp_path / "run", "checkpoint.every_steps=1", callbacks=[recorder], max_steps=3)
    assert list(recorder.steps) == [1, 2, 3]
