"""Writing checkpoints in the background, and runs whose checkpoints cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.host_copy import StagingArea
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig
from posenet.training.checkpoint_writer import CheckpointWriter, copy_to_host
from posenet.training.trainer import Trainer
from tests.helpers.process_runs import (
    find_differences,
    fork_process,
    read_final_checkpoints,
    run_in_fork,
    start_or_resume,
    wait_for_exit,
)
from tests.helpers.tiny_training import CPU, before_step

SHORT = ("train.epochs=2", "train.patience=0", "checkpoint.every_steps=1")
TIMEOUT_SECONDS = 60


class BlockedFolder(CheckpointFolder):
    """Writes nothing before ``unblocked`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.unblocked = threading.Event()

    def save(self, *args: Any) -> None:
        assert self.unblocked.wait(TIMEOUT_SECONDS)
        super().save(*args)


def raise_no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_training_waits_for_a_copy_and_not_for_the_disk(tmp_path: Path) -> None:
    folder = BlockedFolder(tmp_path)
    writer = CheckpointWriter(folder, CheckpointConfig())
    weight = torch.zeros(3)
    writer.save({"model": {"w": weight}, "step": 1}, 1)
    weight += 1  # the next step, before the checkpoint is written
    assert not folder.has_checkpoints()
    folder.unblocked.set()
    writer.finish()
    assert torch.equal(read_checkpoint(folder.last)["model"]["w"], torch.zeros(3))


def test_a_copy_shares_no_memory_with_the_original() -> None:
    state = {
        "tensor": torch.ones(2),
        "list": [torch.ones(2), (torch.ones(2), 3)],
        "table": {"parameter": torch.ones(1, requires_grad=True)},
    }
    copy = copy_to_host(state, StagingArea())
    for tensor in (state["tensor"], state["list"][0], state["list"][1][0]):
        tensor.zero_()
    for copied in (copy["tensor"], copy["list"][0], copy["list"][1][0]):
        assert torch.equal(copied, torch.ones(2))
    assert copy["list"][1][1] == 3
    assert not copy["table"]["parameter"].requires_grad


def test_a_copy_keeps_the_memory_layout() -> None:
    weight = torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert copy_to_host(weight, StagingArea()).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "settings, due_while_writing",
    [(CheckpointConfig(every_minutes=1e-9), False), (CheckpointConfig(every_minutes=0, every_steps=2), True)],
    ids=["every_minutes", "every_steps"],
)
def test_checkpoints_by_the_clock_wait_for_a_slow_disk_and_those_by_steps_do_not(
    tmp_path: Path, settings: CheckpointConfig, due_while_writing: bool
) -> None:
    folder = BlockedFolder(tmp_path)
    writer = CheckpointWriter(folder, settings)
    assert writer.is_due(2)
    writer.save({"step": 2}, 2)
    assert writer.is_due(4) == due_while_writing
    folder.unblocked.set()
    writer.finish()
    assert writer.is_due(4)


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_last_one_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path)
    writer = CheckpointWriter(folder, CheckpointConfig())
    writer.save({"step": 1}, 1)
    writer.finish()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", raise_no_space)
        writer.save({"step": 2}, 2)
        with pytest.raises(CheckpointError, match="last step of the run is not saved.*No space left on device"):
            writer.finish()
    assert "step 2 is not saved" in caplog.text
    assert read_checkpoint(folder.last)["step"] == 1
    writer.save({"step": 3}, 3)
    writer.finish()
    assert read_checkpoint(folder.last)["step"] == 3


def test_a_run_continues_if_some_checkpoints_cannot_be_written(
    stores: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_some_saves(trainer: Trainer) -> None:
        save = trainer.folder.save
        num_calls = 0

        def save_or_fail(*args: Any) -> None:
            nonlocal num_calls
            num_calls += 1
            if num_calls in (1, 3, 4):
                raise_no_space()
            save(*args)

        trainer.folder.save = save_or_fail

    start_or_resume(Runtime(CPU), stores, tmp_path / "undisturbed", *SHORT)
    start_or_resume(Runtime(CPU), stores, tmp_path / "disturbed", *SHORT, on_start=fail_some_saves)
    assert caplog.text.count("is not saved, training continues") == 3
    expected = read_final_checkpoints(tmp_path / "undisturbed")["last"]
    assert find_differences(read_final_checkpoints(tmp_path / "disturbed")["last"], expected) == []


def test_a_run_that_can_write_no_checkpoint_ends_with_an_error_and_leaves_no_partial_file(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    max_bytes = 500_000  # of a file; a checkpoint is larger

    def train_with_small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
        with pytest.raises(CheckpointError, match="last step of the run is not saved.*cannot write .*File too large"):
            start_or_resume(Runtime(CPU), stores, tmp_path / "run", *SHORT)

    assert wait_for_exit(fork_process(train_with_small_files)) == 0
    assert sorted(os.listdir(tmp_path / "run")) == ["log.jsonl", "log.txt"]


def test_a_folder_that_is_removed_during_the_run_is_created_again(
    stores: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"

    def remove_folder_before_third_step(trainer: Trainer) -> None:
        def remove_folder() -> None:
            trainer.writer.wait()
            shutil.rmtree(folder)

        before_step(trainer, 3, remove_folder)

    start_or_resume(Runtime(CPU), stores, folder, *SHORT, on_start=remove_folder_before_third_step)
    assert "was removed during the run" in caplog.text
    assert read_checkpoint(folder / "last.pth")["progress"]["epoch"] == 2


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """Within this context, ``folder`` is a disk of the given size."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.torture
@pytest.mark.parametrize("kilobytes", range(1600, 5600, 200))
def test_a_run_on_a_full_disk_resumes_after_the_disk_has_grown(
    stores: dict[str, Path], tmp_path: Path, kilobytes: int
) -> None:
    """A checkpoint has 1.6 MB here, so that the disk is full at another byte of another checkpoint each time."""
    settings = (*SHORT, "checkpoint.keep=9")
    assert run_in_fork(stores, tmp_path / "uninterrupted", *settings) == 0
    disk = tmp_path / "disk"
    with small_disk(disk, kilobytes):
        folder = disk / "run"
        status = run_in_fork(stores, folder, *settings)
        assert status == 1 or kilobytes > 4800
        for path in folder.glob("*.pth"):
            read_checkpoint(path)
        assert CheckpointFolder(folder).newest_intact() or kilobytes < 3400
        assert not list(folder.glob(".*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert run_in_fork(stores, folder, *settings) == 0
        expected = read_final_checkpoints(tmp_path / "uninterrupted")["last"]
        assert find_differences(read_final_checkpoints(folder)["last"], expected) == []
