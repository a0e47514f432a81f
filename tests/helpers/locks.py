"""Locks that another process holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from posenet.checkpoints.folder import run_lock
from tests.helpers.process_runs import fork_process, wait_for_exit


@contextlib.contextmanager
def locked_by_another_process(folder: Path) -> Iterator[int]:
    """Within this context another process, whose id is yielded, holds the lock of ``folder``."""
    locked_reader, locked_writer = os.pipe()
    release_reader, release_writer = os.pipe()

    def hold_lock() -> None:
        with run_lock(folder):
            os.write(locked_writer, b"x")
            os.read(release_reader, 1)

    pid = fork_process(hold_lock)
    os.read(locked_reader, 1)
    try:
        yield pid
    finally:
        with contextlib.suppress(ChildProcessError):  # the test may have waited for the process
            os.write(release_writer, b"x")
            wait_for_exit(pid)
        for handle in (locked_reader, locked_writer, release_reader, release_writer):
            os.close(handle)


def other_process_can_lock(folder: Path) -> bool:
    """Whether a process other than this one can take the lock of ``folder``."""

    def take_lock() -> None:
        with run_lock(folder):
            pass

    return wait_for_exit(fork_process(take_lock)) == 0
