"""Writing checkpoints in a thread: the copy of the state, failures, and when one is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.checkpoints.writer import CheckpointWriter
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig


class SlowFolder(CheckpointFolder):
    """Saves when ``disk`` is set; fails with ``error`` if there is one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.disk = threading.Event()
        self.error: Exception | None = None
        self.saved: list[int] = []

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        assert self.disk.wait(20)
        if self.error:
            raise self.error
        self.saved.append(step)
        super().save(state, step, best)


def test_training_goes_on_while_a_copy_of_the_state_is_written(tmp_path: Path) -> None:
    folder = SlowFolder(tmp_path)
    writer = CheckpointWriter(folder, CheckpointConfig())
    weight = torch.ones(3)
    writer.save({"model": {"w": weight}, "optimizer": [(weight, {"lr": 0.1})]}, 1, best=True)
    assert writer.saved_step == 1 and folder.saved == []
    weight.zero_()  # the next step changes the weights
    folder.disk.set()
    writer.save({"model": {"w": weight}}, 2)
    writer.finish()
    best = read_checkpoint(folder.best)
    assert torch.equal(best["model"]["w"], torch.ones(3)) and torch.equal(best["optimizer"][0][0], torch.ones(3))
    assert not read_checkpoint(folder.last)["model"]["w"].any()
    assert folder.saved == [1, 2]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_last_one_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SlowFolder(tmp_path)
    folder.disk.set()
    writer = CheckpointWriter(folder, CheckpointConfig())
    folder.error = OSError(28, "No space left on device")
    writer.save({"step": 1}, 1)
    assert writer.wait() is folder.error
    assert "step 1 is not saved, training continues: [Errno 28] No space left on device" in caplog.text
    with pytest.raises(CheckpointError, match="resuming continues from an earlier one: .*No space left"):
        writer.finish()
    folder.error = None
    writer.save({"step": 2}, 2)
    writer.finish()
    assert read_checkpoint(folder.last)["step"] == 2


def test_checkpoints_are_due_by_steps_and_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = CheckpointWriter(CheckpointFolder(tmp_path / "a"), CheckpointConfig(every_steps=3, every_minutes=0))
    assert [step for step in range(1, 10) if by_steps.is_due(step)] == [3, 6, 9]
    by_steps.save({}, 6)
    assert not by_steps.is_due(6)  # an epoch's end may have saved it
    by_steps.finish()

    folder = SlowFolder(tmp_path / "b")
    by_clock = CheckpointWriter(folder, CheckpointConfig(every_minutes=1))
    start = time.monotonic()
    now = start + 50
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not by_clock.is_due(1)
    now = start + 61
    assert by_clock.is_due(1)
    by_clock.save({}, 1)
    now = start + 200
    assert not by_clock.is_due(2)  # the disk is slower than the clock
    monkeypatch.undo()
    folder.disk.set()
    by_clock.finish()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert by_clock.is_due(2)
    neither = CheckpointWriter(CheckpointFolder(tmp_path / "c"), CheckpointConfig(every_minutes=0))
    assert not any(neither.is_due(step) for step in range(1, 100))
