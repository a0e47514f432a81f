"""The checkpoints of one run: which are kept, which is used, and what a killed process leaves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.errors import CheckpointError


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run", keep=2)
    assert not folder.has_checkpoints()
    for step in range(1, 6):
        folder.save({"step": step}, step, best=step == 2)
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"step-00000005.pth", "step-00000004.pth", "last.pth", "best.pth"}
    assert read_checkpoint(folder.last)["step"] == 5
    assert read_checkpoint(folder.best)["step"] == 2
    assert folder.has_checkpoints()


def test_a_damaged_last_checkpoint_is_replaced_by_an_older_one_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.save({"step": step}, step)
    folder.last.write_bytes(b"damaged")  # the same file as step 3
    path, state = folder.newest_intact()
    assert state["step"] == 2 and path.name == "step-00000002.pth"
    assert "last.pth" in caplog.text and "step-00000002.pth" in caplog.text


def test_the_newest_accepted_checkpoint_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.save({"step": step}, step)
    path, state = folder.newest_intact(lambda state: state["step"] < 3)
    assert state["step"] == 2 and path.name == "step-00000002.pth"
    assert folder.newest_intact(lambda state: False) is None


def test_an_empty_folder_has_no_newest_checkpoint(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "empty").newest_intact() is None


def test_a_folder_with_damaged_checkpoints_only_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "last.pth").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="every checkpoint in .* is damaged"):
        CheckpointFolder(tmp_path).newest_intact()


def test_checkpoints_are_ordered_by_time_after_a_return_to_an_older_step(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for second, step in enumerate((200, 300, 400, 210)):
        folder.save({"step": step}, step)
        os.utime(folder.path / f"step-{step:08d}.pth", (second, second))
    names = [path.name for path in folder.history()]
    assert names[0] == "step-00000210.pth"
    assert "step-00000400.pth" in names


def test_temporary_files_of_a_killed_process_are_deleted_and_never_written_to(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    for name in ("last", "step-00000009"):
        os.link(folder.best, tmp_path / f".{name}.pth.{os.getpid()}.tmp")
    (tmp_path / ".last.pth.1.tmp").write_bytes(b"half")
    other_program = tmp_path / ".weights.pth.1.tmp"  # of a program that exports into the folder
    other_program.write_bytes(b"half")
    folder.save({"step": 2}, 2)
    assert list(tmp_path.glob(".*.tmp")) == [other_program]
    assert read_checkpoint(folder.best)["step"] == 1
    assert read_checkpoint(folder.last)["step"] == 2


def test_without_hard_links_last_and_best_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    assert read_checkpoint(folder.last) == read_checkpoint(folder.best) == {"step": 1}


def test_only_a_folder_that_was_removed_during_the_run_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "run")
    folder.save({"step": 1}, 1)
    folder.save({"step": 2}, 2)
    assert caplog.text == ""
    shutil.rmtree(folder.path)
    folder.save({"step": 3}, 3)
    assert "run was removed during the run" in caplog.text
    assert read_checkpoint(folder.last)["step"] == 3
