"""Lock files, so that only one process at a time writes somewhere.

The operating system releases a lock when its process ends or is killed. It is a record lock and not ``flock``, because
data workers would inherit an ``flock`` and keep it after their trainer was killed. A second lock in the same process is
not detected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCKED_BYTE = 1 << 30
"""Offset of the locked byte: far after the text, because on Windows other processes cannot read a locked byte."""

_log = logging.getLogger(__name__)


class LockedError(Exception):
    """Another process holds the lock; the text names the process."""


@contextlib.contextmanager
def lock_file(path: Path, protected: Path, *, delete: bool = False) -> Iterator[None]:
    """Within this context, only this process holds the lock ``path``, a file that is created if necessary.

    The lock file names its owner as long as it is locked. If it names an owner but is not locked, that owner was
    killed. On a file system without locks the context logs a warning and locks nothing.

    Args:
        protected: what the lock protects, for messages.
        delete: whether the file is deleted at the end; otherwise it stays, empty.

    Raises:
        LockedError: another process holds the lock.
    """
    handle = _open_locked(path, protected)
    try:
        _write_owner(handle, f"process {os.getpid()} on {socket.gethostname()}")
        try:
            yield
        finally:
            _write_owner(handle, "")
            if delete:
                with contextlib.suppress(OSError):  # Windows deletes no open file
                    path.unlink()
    finally:
        os.close(handle)


def _open_locked(path: Path, protected: Path) -> int:
    """Open and lock the file. If its owner has deleted it in between, lock the new one."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _acquire(handle, protected)
            if _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _acquire(handle: int, protected: Path) -> None:
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError) as error:
        raise LockedError(_read_owner(handle) or "another process") from error
    except OSError as error:
        warning = "WARNING: the file system of %s has no locks (%s); make sure that no other run writes there"
        _log.warning(warning, protected, error.strerror)
        return
    if killed_owner := _read_owner(handle):
        _log.info("%s was in use by %s, which was killed: taking it over", protected, killed_owner)


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
