"""Writing the checkpoints of a run: when one is due, and failures."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder, CheckpointWriter
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_last_one_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "run")
    writer = CheckpointWriter(folder, CheckpointConfig())
    folder.path.touch()
    writer.save({"step": 1}, 1)
    assert "step 1 is not saved" in caplog.text
    with pytest.raises(CheckpointError, match="not saved"):
        writer.finish()
    folder.path.unlink()
    weight = torch.ones(3)
    writer.save({"model": {"w": weight}, "optimizer": [(weight, {"lr": 0.1})]}, 2, best=True)
    writer.finish()
    assert writer.saved_step == 2
    last = read_checkpoint(folder.last)
    assert torch.equal(last["model"]["w"], weight) and torch.equal(last["optimizer"][0][0], weight)
    assert folder.best.samefile(folder.last)


def test_checkpoints_are_due_by_steps_and_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = CheckpointWriter(CheckpointFolder(tmp_path / "a"), CheckpointConfig(every_steps=3, every_minutes=0))
    assert [step for step in range(1, 10) if by_steps.is_due(step)] == [3, 6, 9]
    by_steps.save({}, 6)
    assert not by_steps.is_due(6)  # an epoch's end may have saved it
    by_clock = CheckpointWriter(CheckpointFolder(tmp_path / "b"), CheckpointConfig(every_minutes=1))
    neither = CheckpointWriter(CheckpointFolder(tmp_path / "c"), CheckpointConfig(every_minutes=0))
    start = time.monotonic()
    for seconds, due in ((50, False), (61, True)):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: start + seconds)
        assert by_clock.is_due(1) == due and not neither.is_due(1)
    by_clock.save({}, 1)
    monkeypatch.setattr(time, "monotonic", lambda: start + 120)
    assert not by_clock.is_due(2)
