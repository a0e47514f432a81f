"""A lock on a run's folder: one writer at a time.

The operating system holds it for a process and drops it when the process ends, however it ends. It is the process's
own: data workers do not inherit it (which is why it is a record lock, not ``flock``), so none of them can keep it after
their trainer was killed. Taking it twice in one process is not noticed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from posenet.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None

NAME = "run.lock"
_FAR = 1 << 30
"""Which byte is locked: far from the text, as on Windows nobody else can read a locked byte."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Within it, this process alone may write into ``folder``, which is created.

    The lock file stays, empty: removing it could take it from under the next writer. One that still names its writer
    was left by a run that was killed, and is taken over. A file system that has no locks costs a warning.

    Raises:
        CheckpointError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, folder)
        _say(handle, f"process {os.getpid()} on {socket.gethostname()}")
        try:
            yield
        finally:
            _say(handle, "")
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError) as error:
        raise CheckpointError(
            f"{folder} is in use by {_said(handle) or 'another process'}; wait until it has ended, "
            "or choose another folder with --checkpoint-path"
        ) from error
    except OSError as error:
        _log.warning(
            "WARNING: the file system of %s has no locks (%s); see to it that no other run writes there",
            folder,
            error.strerror,
        )
    else:
        if dead := _said(handle):
            _log.info("%s was in use by %s, which did not end by itself: taken over", folder, dead)


def _lock(handle: int) -> None:
    """Lock a byte at once or raise ``OSError``."""
    os.lseek(handle, _FAR, os.SEEK_SET)
    if fcntl:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_CUR)
    else:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)


def _said(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    return " ".join(os.read(handle, 200).decode(errors="replace").split())


def _say(handle: int, text: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk the lock holds without its text
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text.encode())
