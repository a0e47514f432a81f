"""Writing files so that they are either complete or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename that file to ``path`` when the block ends without an error.

    Other processes find either the old or the new content, complete, also after a kill or a power failure.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # A killed process with the same id may have left such a file. It may be a hard link to a file that matters, so it
    # is removed, not overwritten.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file completely or not at all; create its folder if necessary."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(data)


def flush_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power failure.

    Not every system can flush a folder; there this does nothing.
    """
    if path.is_dir():
        with contextlib.suppress(OSError):
            _fsync(path, os.O_RDONLY)
    else:
        _fsync(path, os.O_RDWR)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
