"""Checkpoints off the critical path, and what becomes of the run and of older ones where a write fails."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints import file as checkpoint_file
from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig
from posenet.training.checkpoint_writer import CheckpointWriter, copy_to_host
from tests.helpers.process_runs import (
    find_differences,
    fork_process,
    read_final_checkpoints,
    run_in_fork,
    start_or_resume,
    wait_for_exit,
)
from tests.helpers.tiny_training import CPU

SHORT = ("train.epochs=2", "train.patience=0", "checkpoint.every_steps=1")
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT)


class SlowFolder(CheckpointFolder):
    """Writes only once ``go`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()

    def save(self, *args: Any) -> None:
        assert self.go.wait(60)
        super().save(*args)


def test_the_training_waits_for_a_copy_only(tmp_path):
    folder = SlowFolder(tmp_path)
    writer, weight = CheckpointWriter(folder, CheckpointConfig()), torch.zeros(3)
    writer.save({"model": {"w": weight}, "step": 1}, 1)
    weight += 1  # the next step, while the checkpoint waits for its disk
    assert not folder.has_checkpoints()
    folder.go.set()
    writer.finish()
    assert torch.equal(read_checkpoint(folder.last)["model"]["w"], torch.zeros(3))


def test_a_copy_shares_no_memory():
    state = {
        "a": torch.ones(2),
        "b": [torch.ones(2), (torch.ones(2), 3)],
        "c": {"d": torch.ones(1, requires_grad=True)},
    }
    copy = copy_to_host(state)
    for tensor in (state["a"], state["b"][0], state["b"][1][0]):
        tensor.zero_()
    assert copy["a"].sum() == copy["b"][0].sum() == copy["b"][1][0].sum() == 2
    assert copy["b"][1][1] == 3 and not copy["c"]["d"].requires_grad


def test_channels_last_memory_stays_so():
    weight = torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert copy_to_host(weight).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("every, due_meanwhile", [({"every_minutes": 1e-9}, False), ({"every_steps": 2}, True)])
def test_the_clock_waits_for_a_slow_disk_and_steps_do_not(tmp_path, every, due_meanwhile):
    folder = SlowFolder(tmp_path)
    writer = CheckpointWriter(folder, CheckpointConfig(**every))
    assert writer.is_due(2)
    writer.save({"step": 2}, 2)
    assert writer.is_due(4) == due_meanwhile
    folder.go.set()
    writer.finish()
    assert writer.is_due(4)


def test_a_failed_save_is_a_warning_and_the_last_one_an_error(tmp_path, monkeypatch, caplog):
    folder = CheckpointFolder(tmp_path)
    writer = CheckpointWriter(folder, CheckpointConfig())
    writer.save({"step": 1}, 1)
    writer.finish()
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", failing(os.replace, 1, errno.ENOSPC))
        writer.save({"step": 2}, 2)
        with pytest.raises(CheckpointError, match="last step of the run is not saved.*No space left on device"):
            writer.finish()
    assert "step 2 is not saved" in caplog.text and read_checkpoint(folder.last)["step"] == 1
    writer.save({"step": 3}, 3)
    writer.finish()
    assert read_checkpoint(folder.last)["step"] == 3


def failing(function: Callable[..., Any], at: int, code: int) -> Callable[..., Any]:
    """The function, whose ``at``-th call and later ones fail."""
    calls = []

    def fails(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) >= at:
            raise OSError(code, os.strerror(code))
        return function(*args, **options)

    return fails


class FullFile(io.FileIO):
    """A file on a disk that has room for so many bytes."""

    def __init__(self, path: Path, mode: str, room: int, code: int) -> None:
        super().__init__(path, mode)
        self.room, self.code = room, code

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(self.code, os.strerror(self.code))
        return super().write(data)


def clean_save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter, int]:
    """How often a save calls what the system may refuse, and how many bytes it writes."""
    calls: Counter = Counter()
    with monkeypatch.context() as watched:
        for name in ("open", "fsync", "replace", "link"):

            def pluralize(*args: Any, _name: str = name, _real: Any = getattr(os, name), **options: Any) -> Any:
                calls[_name] += 1
                return _real(*args, **options)

            watched.setattr(os, name, pluralize)
        CheckpointFolder(folder).save(state(2), 2, best=True)
    return calls, (folder / "last.pth").stat().st_size


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"w": torch.full((5000,), float(step))}}


@contextlib.contextmanager
def fault(monkeypatch: pytest.MonkeyPatch, what: str, at: int, code: int) -> Iterator[None]:
    with monkeypatch.context() as broken:
        if what == "write":
            broken.setattr(
                checkpoint_file,
                "open",
                lambda path, mode: (
                    io.BufferedRandom(FullFile(path, mode, at, code)) if "w" in mode else open(path, mode)
                ),
                raising=False,
            )
        else:
            broken.setattr(os, what, failing(getattr(os, what), at, code))
        if what == "link":  # or a copy takes its place
            broken.setattr(shutil, "copyfile", failing(shutil.copyfile, 1, code))
        yield


def test_whatever_write_fails_older_checkpoints_are_whole(tmp_path, monkeypatch):
    calls, size = clean_save(tmp_path / "clean", monkeypatch)
    faults = [(what, at) for what, count in calls.items() for at in range(1, count + 1)]
    faults += [("write", room) for room in (0, size // 2, size - 90, size - 1)]
    survived = 0
    for what, at in faults:
        for code in CODES:
            folder = CheckpointFolder(tmp_path / f"{what}-{at}-{code}")
            folder.save(state(1), 1, best=True)
            with fault(monkeypatch, what, at, code):
                try:
                    folder.save(state(2), 2, best=True)
                    saved = True
                except (CheckpointError, OSError) as error:
                    saved = False
                    assert "\n" not in str(error) and os.strerror(code) in str(error)
            found = {path.name: read_checkpoint(path)["step"] for path in folder.path.glob("*.pth")}
            assert found.keys() >= {"last.pth", "best.pth"} and set(found.values()) <= {1, 2}
            assert not saved or found["last.pth"] == found["best.pth"] == 2, (what, at)
            assert not list(folder.path.glob(".*"))
            folder.save(state(3), 3)
            assert read_checkpoint(folder.last)["step"] == 3
            survived += 1
    assert survived >= 60


def test_a_folder_one_may_not_write_into_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(state(1), 1)
    tmp_path.chmod(0o555)

    def refused() -> None:
        if os.getuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with pytest.raises(CheckpointError, match="step-00000002.pth.*Permission denied"):
            folder.save(state(2), 2)

    for parent in takewhile(lambda folder: folder.name.startswith(("pytest-", "popen-")), tmp_path.parents):
        parent.chmod(0o755)
    try:
        assert wait_for_exit(fork_process(refused)) == 0
    finally:
        tmp_path.chmod(0o755)
    assert folder.newest_intact()[1]["step"] == 1


def test_training_goes_on_where_periodic_saves_fail(stores, tmp_path, caplog):
    def unlucky(trainer):
        save, tries = trainer.folder.save, []

        def sometimes(*args):
            tries.append(1)
            if len(tries) in (1, 3, 4):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(*args)

        trainer.folder.save = sometimes

    start_or_resume(Runtime(CPU), stores, tmp_path / "whole", *SHORT)
    start_or_resume(Runtime(CPU), stores, tmp_path / "unlucky", *SHORT, on_start=unlucky)
    assert caplog.text.count("is not saved, training continues") == 3
    assert (
        find_differences(
            read_final_checkpoints(tmp_path / "unlucky")["last"], read_final_checkpoints(tmp_path / "whole")["last"]
        )
        == []
    )


def test_without_room_for_any_checkpoint_the_run_ends_with_an_error_and_leaves_nothing_half(stores, tmp_path):
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        with pytest.raises(CheckpointError, match="last step of the run is not saved.*cannot write .*File too large"):
            start_or_resume(Runtime(CPU), stores, tmp_path / "run", *SHORT)

    assert wait_for_exit(fork_process(small_files_only)) == 0
    assert sorted(os.listdir(tmp_path / "run")) == ["log.jsonl", "log.txt"]


def test_a_folder_that_is_removed_under_the_run_is_made_anew(stores, tmp_path, caplog):
    folder = tmp_path / "run"

    def remove_it_once(trainer):
        update = trainer.train_step

        def after_two_steps(batches):
            if trainer.progress.total_steps == 2:
                trainer.writer.wait()
                shutil.rmtree(folder)
            return update(batches)

        trainer.train_step = after_two_steps

    start_or_resume(Runtime(CPU), stores, folder, *SHORT, on_start=remove_it_once)
    assert "was removed during the run" in caplog.text
    assert read_checkpoint(folder / "last.pth")["progress"]["epoch"] == 2


def test_a_return_waits_for_the_checkpoint_that_is_being_written(stores, tmp_path):
    """Not the one before: which weights a run returns to must not depend on the speed of the disk."""
    returned = []

    def slow_disk(trainer):
        save, restore = trainer.folder.save, trainer.state.load_weights
        begun = threading.Event()

        def slowly(*args):
            begun.wait(0.2)
            save(*args)

        trainer.folder.save = slowly
        trainer.state.load_weights = lambda found, path: (
            returned.append(found["progress"]["total_steps"]),
            restore(found, path),
        )
        update = trainer.train_step

        def return_once(batches):
            if trainer.progress.total_steps == 2 and not returned:
                trainer._return_to_checkpoint()
            return update(batches)

        trainer.train_step = return_once

    start_or_resume(
        Runtime(CPU),
        stores,
        tmp_path / "run",
        *SHORT,
        "checkpoint.every_steps=2",
        "guard.threshold=2e5",
        on_start=slow_disk,
    )
    assert returned == [2]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.torture
@pytest.mark.parametrize("room", range(1600, 5600, 200))
def test_a_disk_that_fills_up_and_then_has_room_again(stores, tmp_path, room):
    """Checkpoints have 1.6 MB here, so that it is full at another place of another save each time."""
    assert run_in_fork(stores, tmp_path / "whole", *SHORT) == 0
    disk = tmp_path / "disk"
    with small_disk(disk, f"{room}k"):
        folder = disk / "run"
        status = run_in_fork(stores, folder, *SHORT, "checkpoint.keep=9")
        found = CheckpointFolder(folder).newest_intact()
        for path in folder.glob("*.pth"):
            read_checkpoint(path)
        assert (status == 1 or room > 4800) and (found or room < 3400) and not list(folder.glob(".*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert run_in_fork(stores, folder, *SHORT, "checkpoint.keep=9") == 0
        one, other = (
            read_final_checkpoints(path)["last"] | {"config": "but for checkpoint.keep"}
            for path in (folder, tmp_path / "whole")
        )
        assert find_differences(one, other) == []
