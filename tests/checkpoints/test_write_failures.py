"""Checkpoints that cannot be written: full disks, errors of single system calls, and missing permissions."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints import file as checkpoint_file
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.errors import CheckpointError
from tests.helpers.process_runs import fork_process, wait_for_exit

ERROR_CODES = (errno.ENOSPC, errno.EACCES)
SYSTEM_CALLS = ("open", "fsync", "replace", "link")
"""Functions of ``os`` that a save calls and that the system may refuse. A full disk refuses "write"."""
NOBODY = 65534
"""A user without rights."""


def make_state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"w": torch.full((5000,), float(step))}}


def fail_from_call(number: int, function: Callable[..., Any], code: int, calls: list[int]) -> Callable[..., Any]:
    """The function, but it fails from call number ``number`` on; ``calls`` gets the numbers, counted from 1."""

    def call_or_fail(*args: Any, **options: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) >= number:
            raise OSError(code, os.strerror(code))
        return function(*args, **options)

    return call_or_fail


class FileOnFullDisk(io.FileIO):
    """A file on a disk that has space for ``free_bytes`` more bytes."""

    def __init__(self, path: Path, mode: str, free_bytes: int, code: int) -> None:
        super().__init__(path, mode)
        self.free_bytes = free_bytes
        self.code = code

    def write(self, data: Any) -> int:
        self.free_bytes -= len(data)
        if self.free_bytes < 0:
            raise OSError(self.code, os.strerror(self.code))
        return super().write(data)


@contextlib.contextmanager
def failing_call(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, code: int, calls: list[int]
) -> Iterator[None]:
    """Within this context, a system call fails from its call number ``number`` on; ``calls`` gets the numbers."""
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail_from_call(number, getattr(os, name), code, calls))
        if name == "link":  # else a copy replaces the link
            patch.setattr(shutil, "copyfile", fail_from_call(1, shutil.copyfile, code, []))
        yield


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, free_bytes: int, code: int) -> Iterator[None]:
    """Within this context, the file of a checkpoint can hold ``free_bytes`` bytes."""

    def open_on_full_disk(path: Path, mode: str) -> Any:
        if "w" in mode:
            return io.BufferedWriter(FileOnFullDisk(path, mode, free_bytes, code))
        return open(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "open", open_on_full_disk, raising=False)
        yield


def assert_failure_harms_nothing(
    folder: CheckpointFolder, failure: contextlib.AbstractContextManager[None], code: int
) -> None:
    """Save step 2 while writing fails with ``code``; step 1 must stay usable, and step 3 must be saved afterwards."""
    folder.save(make_state(1), 1, best=True)
    is_saved = True
    with failure:
        try:
            folder.save(make_state(2), 2, best=True)
        except (CheckpointError, OSError) as error:
            is_saved = False
            message = str(error)
    steps = {path.name: read_checkpoint(path)["step"] for path in folder.path.glob("*.pth")}
    assert {"last.pth", "best.pth"} <= steps.keys()
    assert set(steps.values()) <= {1, 2}
    if is_saved:
        assert steps["last.pth"] == 2
        assert steps["best.pth"] == 2
    else:
        assert "\n" not in message
        assert os.strerror(code) in message
    assert not list(folder.path.glob(".*"))
    folder.save(make_state(3), 3)
    assert read_checkpoint(folder.last)["step"] == 3


def test_a_system_call_that_fails_does_not_damage_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in itertools.product(SYSTEM_CALLS, ERROR_CODES):
        for number in itertools.count(1):
            folder = CheckpointFolder(tmp_path / f"{name}-{number}-{code}")
            calls: list[int] = []
            assert_failure_harms_nothing(folder, failing_call(monkeypatch, name, number, code, calls), code)
            if len(calls) < number:  # the save makes fewer calls
                break
        assert number > 1, f"a save does not call os.{name}"


@pytest.mark.parametrize("missing_bytes", ["all", "half", 90, 1])
@pytest.mark.parametrize("code", ERROR_CODES, ids=errno.errorcode.get)
def test_a_full_disk_does_not_damage_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing_bytes: str | int, code: int
) -> None:
    complete = CheckpointFolder(tmp_path / "complete")
    complete.save(make_state(2), 2)
    size = complete.last.stat().st_size
    free_bytes = {"all": 0, "half": size // 2, 90: size - 90, 1: size - 1}[missing_bytes]
    assert_failure_harms_nothing(CheckpointFolder(tmp_path / "full"), full_disk(monkeypatch, free_bytes, code), code)


def test_a_folder_without_write_permission_is_named(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(make_state(1), 1)

    def save_without_permission() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)  # root may write anywhere
        with pytest.raises(CheckpointError, match="step-00000002.pth.*Permission denied"):
            folder.save(make_state(2), 2)

    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)  # lets other users reach the folder
    tmp_path.chmod(0o555)
    try:
        assert wait_for_exit(fork_process(save_without_permission)) == 0
    finally:
        tmp_path.chmod(0o755)
    _, state = folder.newest_intact()
    assert state["step"] == 1
