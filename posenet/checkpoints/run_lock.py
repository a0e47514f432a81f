"""A lock on the folder of a run, so that only one process at a time writes there.

The operating system releases the lock when the process ends or is killed. It is a record lock and not ``flock``,
because data workers would inherit an ``flock`` and keep it after their trainer was killed. A second lock in the same
process is not detected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from posenet.errors import CheckpointError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK_FILE = "run.lock"
_LOCKED_BYTE = 1 << 30
"""Offset of the locked byte: far after the text, because on Windows other processes cannot read a locked byte."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Within this context, only this process may write into ``folder``, which is created if necessary.

    The lock file names its owner as long as it is locked. Afterwards it stays in the folder, empty: deleting it could
    delete the file of the next owner. If the file names an owner but is not locked, that owner was killed. On a file
    system without locks the context logs a warning and locks nothing.

    Raises:
        CheckpointError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, folder)
        _write_owner(handle, f"process {os.getpid()} on {socket.gethostname()}")
        try:
            yield
        finally:
            _write_owner(handle, "")
    finally:
        os.close(handle)


def _acquire(handle: int, folder: Path) -> None:
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError) as error:
        owner = _read_owner(handle) or "another process"
        raise CheckpointError(
            f"{folder} is in use by {owner}; wait until it has ended, or choose another folder with --checkpoint-path"
        ) from error
    except OSError as error:
        warning = "WARNING: the file system of %s has no locks (%s); make sure that no other run writes there"
        _log.warning(warning, folder, error.strerror)
        return
    if killed_owner := _read_owner(handle):
        _log.info("%s was in use by %s, which was killed: taking it over", folder, killed_owner)


def _lock(handle: int) -> None:
    """Lock a byte without waiting, or raise ``OSError``."""
    os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
    if sys.platform == "win32":
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_CUR)


def _read_owner(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    return " ".join(os.read(handle, 200).decode(errors="replace").split())


def _write_owner(handle: int, owner: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk the lock works without the text
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, owner.encode())
