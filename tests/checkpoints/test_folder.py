"""The folder of a run: which checkpoints are written, kept and used, the lock and the status."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from posenet.checkpoints import folder as folder_module
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder, run_lock
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig
from tests.helpers.process_runs import locked_by_another_process, other_process_can_lock, wait_for_exit


def save_steps(folder: CheckpointFolder, *steps: int) -> None:
    for step in steps:
        folder.save({"step": step}, step)


def steps_of(folder: CheckpointFolder) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in folder.history()]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run", CheckpointConfig(keep=2))
    assert not folder.has_checkpoints() and folder.newest_intact() is None
    for step in range(1, 6):
        folder.save({"step": step}, step, best=step == 2)
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"step-00000005.pth", "step-00000004.pth", "last.pth", "best.pth"}
    assert read_checkpoint(folder.last)["step"] == 5
    assert read_checkpoint(folder.best)["step"] == 2
    assert folder.has_checkpoints()


def test_the_newest_intact_checkpoint_that_is_accepted_is_found_and_the_best_where_all_newer_ones_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    save_steps(folder, 2, 3)
    first, second, _ = folder.history()[::-1]
    assert folder.newest_intact(lambda state: state["step"] < 3) == (second, {"step": 2})
    assert folder.newest_intact(lambda state: False) is None
    assert caplog.text == ""
    folder.last.write_bytes(b"damaged")  # the same file as step 3
    assert folder.newest_intact() == (second, {"step": 2})
    assert "last.pth" in caplog.text and f"using {second}" in caplog.text
    second.write_bytes(b"damaged")
    first.unlink()
    assert folder.newest_intact() == (folder.best, {"step": 1})
    folder.best.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="every checkpoint"):
        folder.newest_intact()


def test_an_older_checkpoint_is_not_taken_because_the_newest_cannot_be_read_now(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save_steps(folder, 1)
    folder.save({"format": 99}, 2)
    with pytest.raises(CheckpointError, match="format 99"):
        folder.newest_intact()


def test_checkpoints_are_ordered_by_step_whatever_their_times(tmp_path: Path) -> None:
    """A copied folder has other times, and may have no links."""
    folder = CheckpointFolder(tmp_path, CheckpointConfig(keep=3))
    save_steps(folder, 90, 100, 110)
    for second, path in enumerate(folder.history()):
        os.utime(path, (second, second))
    copy = CheckpointFolder(shutil.copytree(tmp_path, tmp_path / "copy"), CheckpointConfig(keep=3))
    for found in (folder, copy):
        assert steps_of(found) == [110, 100, 90]
        save_steps(found, 120)
        assert steps_of(found) == [120, 110, 100]
        assert read_checkpoint(found.last)["step"] == 120


def test_checkpoints_beyond_a_step_to_which_the_run_has_returned_are_the_oldest(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, CheckpointConfig(keep=3))
    save_steps(folder, 200, 300, 400, 210)
    assert steps_of(folder) == [210, 200, 400]
    save_steps(folder, 220, 230)
    assert steps_of(folder) == [230, 220, 210]


def test_temporary_files_of_a_killed_process_are_deleted_and_never_written_to(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    for name in ("last", "step-00000009"):
        os.link(folder.best, tmp_path / f".{name}.pth.{os.getpid()}.tmp")
    others = {tmp_path / ".weights.pth.1.tmp", tmp_path / ".best.pth.tmp"}  # of programs that use the folder, too
    for path in (*others, tmp_path / ".best.pth.1.tmp"):
        path.write_bytes(b"half")
    save_steps(folder, 2)
    assert set(tmp_path.glob(".*.tmp")) == others
    assert read_checkpoint(folder.best)["step"] == 1
    assert read_checkpoint(folder.last)["step"] == 2


def test_without_hard_links_last_and_best_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    assert read_checkpoint(folder.last) == read_checkpoint(folder.best) == {"step": 1}


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_last_one_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "run")
    folder.path.touch()
    assert not folder.save({"step": 1}, 1)
    assert "step 1 is not saved" in caplog.text
    with pytest.raises(CheckpointError, match="not saved"):
        folder.require_saved()
    folder.path.unlink()
    weight = torch.ones(100_000)[:3]  # whose memory is not saved with it
    assert folder.save({"model": {"w": weight}, "optimizer": [(weight, {"lr": 0.1})]}, 2, best=True)
    folder.require_saved()
    assert folder.saved_step == 2
    last = read_checkpoint(folder.last)
    assert torch.equal(last["model"]["w"], weight) and torch.equal(last["optimizer"][0][0], weight)
    assert folder.best.samefile(folder.last) and folder.last.stat().st_size < 10_000


def test_checkpoints_are_due_by_steps_and_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = CheckpointFolder(tmp_path / "a", CheckpointConfig(every_steps=3, every_minutes=0))
    assert [step for step in range(1, 10) if by_steps.is_due(step)] == [3, 6, 9]
    by_steps.save({}, 6)
    assert not by_steps.is_due(6)  # an epoch's end may have saved it
    by_clock = CheckpointFolder(tmp_path / "b", CheckpointConfig(every_minutes=1))
    neither = CheckpointFolder(tmp_path / "c", CheckpointConfig(every_minutes=0))
    start = time.monotonic()
    for seconds, due in ((50, False), (61, True)):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: start + seconds)
        assert by_clock.is_due(1) == due and not neither.is_due(1)
    by_clock.save({}, 1)
    monkeypatch.setattr(time, "monotonic", lambda: start + 120)
    assert not by_clock.is_due(2)


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOCK_SECONDS", 0.1)
    folder = tmp_path / "new"
    with locked_by_another_process(folder) as pid:
        with pytest.raises(CheckpointError, match="new .it is in use .*checkpoint.path"):
            with run_lock(folder):
                pytest.fail("two processes hold the lock")
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file .*checkpoint.path"), run_lock(tmp_path / "file"):
        pass
    with pytest.raises(ValueError), run_lock(folder):
        assert not other_process_can_lock(folder)
        raise ValueError
    assert other_process_can_lock(folder)


def test_a_start_waits_for_data_workers_that_end_after_their_trainer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with locked_by_another_process(tmp_path) as pid:
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with run_lock(tmp_path):
            assert caplog.messages == [f"another process uses {tmp_path}; waiting up to 15 s for its end"]
