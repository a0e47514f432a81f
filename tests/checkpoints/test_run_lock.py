"""Only one process at a time writes into the folder of a run; the lock ends with its process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from posenet import locks
from posenet.checkpoints.run_lock import LOCK_FILE, run_lock
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError
from posenet.training.trainer import Trainer
from tests.helpers.locks import locked_by_another_process, other_process_can_lock
from tests.helpers.process_runs import fork_process, start_or_resume, wait_for_exit
from tests.helpers.tiny_training import CPU


def test_a_second_process_is_refused_and_the_error_names_the_first(tmp_path: Path) -> None:
    with locked_by_another_process(tmp_path) as pid:
        with pytest.raises(CheckpointError, match=rf"in use by process {pid} on .*--checkpoint-path"):
            with run_lock(tmp_path):
                pytest.fail("two processes hold the lock")
    with run_lock(tmp_path):
        assert not other_process_can_lock(tmp_path)
    assert other_process_can_lock(tmp_path)
    assert (tmp_path / LOCK_FILE).read_text() == ""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with locked_by_another_process(tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)
    with caplog.at_level("INFO"), run_lock(tmp_path):
        assert f"process {pid} " in caplog.text and "taking it over" in caplog.text


def test_a_run_that_fails_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError), run_lock(tmp_path):
        raise ValueError
    assert (tmp_path / LOCK_FILE).read_text() == ""
    assert other_process_can_lock(tmp_path)


def test_a_file_system_without_locks_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_lock", refuse)
    with run_lock(tmp_path):
        assert "No locks available" in caplog.text


def test_data_workers_do_not_keep_the_lock_of_a_killed_trainer(stores: dict[str, Path], tmp_path: Path) -> None:
    pids_reader, pids_writer = os.pipe()

    def kill_in_first_step(trainer: Trainer) -> None:
        def report_workers_and_die(batches: Any) -> None:
            workers = trainer.input.loader.loader._iterator._workers
            os.write(pids_writer, " ".join(str(worker.pid) for worker in workers).encode())
            os.kill(os.getpid(), signal.SIGKILL)

        trainer.train_step = report_workers_and_die

    def train_and_die() -> None:
        with run_lock(tmp_path):
            start_or_resume(Runtime(CPU), stores, tmp_path / "run", "data.workers=2", on_start=kill_in_first_step)

    pid = fork_process(train_and_die)
    workers = [int(worker_pid) for worker_pid in os.read(pids_reader, 100).split()]
    assert wait_for_exit(pid) == -signal.SIGKILL and len(workers) == 2
    try:
        for worker in workers:
            os.kill(worker, 0)  # raises an error unless the worker is alive
        assert other_process_can_lock(tmp_path)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        os.close(pids_reader)
        os.close(pids_writer)
