"""Locks that another process holds."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from posenet.checkpoints.folder import run_lock
from tests.helpers.process_runs import fork_process, wait_for_exit


@contextlib.contextmanager
def locked_by_another_process(folder: Path) -> Iterator[int]:
    """Within this context another process, whose id is yielded, holds the lock of ``folder``."""
    reader, writer = os.pipe()

    def hold_lock() -> None:
        with run_lock(folder):
            os.write(writer, b"x")
            signal.pause()

    pid = fork_process(hold_lock)
    os.read(reader, 1)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the test may have waited for the process
            os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid)
        os.close(reader)
        os.close(writer)


def other_process_can_lock(folder: Path) -> bool:
    """Whether a process other than this one can take the lock of ``folder``."""

    def take_lock() -> None:
        with run_lock(folder):
            pass

    return wait_for_exit(fork_process(take_lock)) == 0
