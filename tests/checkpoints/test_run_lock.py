"""One run at a time in a folder; a lock dies with its process, whatever the data workers do."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from posenet.checkpoints import run_lock as lock
from posenet.checkpoints.run_lock import LOCK_FILE, run_lock
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError
from tests.helpers.process_runs import fork_process, start_or_resume, wait_for_exit
from tests.helpers.tiny_training import CPU


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[tuple[int, int]]:
    """Another process that holds the folder's lock until the block ends."""
    said, say = os.pipe()
    asked, ask = os.pipe()

    def hold() -> None:
        with run_lock(folder):
            os.write(say, b"held")
            os.read(asked, 1)

    pid = fork_process(hold)
    os.read(said, 4)
    try:
        yield pid, ask
    finally:
        with contextlib.suppress(ChildProcessError):
            os.write(ask, b"x")
            wait_for_exit(pid)
        for handle in (said, say, asked, ask):
            os.close(handle)


def locks(folder: Path) -> bool:
    """Whether another process than this one gets the lock."""

    def take() -> None:
        with run_lock(folder):
            pass

    return wait_for_exit(fork_process(take)) == 0


def test_a_second_writer_is_refused_and_told_by_whom(tmp_path):
    with holder(tmp_path) as (pid, _):
        with pytest.raises(CheckpointError, match=rf"in use by process {pid} on .*--checkpoint-path"):
            with run_lock(tmp_path):
                pytest.fail("two writers")
    with run_lock(tmp_path):
        assert not locks(tmp_path)
    assert locks(tmp_path) and (tmp_path / LOCK_FILE).read_text() == ""


def test_a_lock_left_by_a_kill_is_taken_over(tmp_path, caplog):
    with holder(tmp_path) as (pid, _):
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)
    with caplog.at_level("INFO"), run_lock(tmp_path):
        assert f"process {pid} " in caplog.text and "taking it over" in caplog.text


def test_a_run_that_fails_gives_the_lock_back(tmp_path):
    with pytest.raises(ValueError), run_lock(tmp_path):
        raise ValueError
    assert (tmp_path / LOCK_FILE).read_text() == "" and locks(tmp_path)


def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", refuse)
    with run_lock(tmp_path):
        assert "No locks available" in caplog.text


def test_data_workers_do_not_keep_a_killed_trainer_s_lock(stores, tmp_path):
    said, say = os.pipe()

    def train_and_die() -> None:
        def workers_are_at_work(trainer):
            train = trainer.train_step

            def fatal(batches):
                os.write(say, " ".join(str(w.pid) for w in trainer.input.loader.loader._iterator._workers).encode())
                os.kill(os.getpid(), signal.SIGKILL)
                return train(batches)

            trainer.train_step = fatal

        with run_lock(tmp_path):
            start_or_resume(Runtime(CPU), stores, tmp_path / "run", "data.workers=2", on_start=workers_are_at_work)

    pid = fork_process(train_and_die)
    workers = [int(word) for word in os.read(said, 100).split()]
    assert wait_for_exit(pid) == -signal.SIGKILL and len(workers) == 2
    try:
        for worker in workers:
            os.kill(worker, 0)  # they are still there
        assert locks(tmp_path)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
