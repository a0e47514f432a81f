"""What the operating system gives: cores to run on, and files that are replaced whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``; what is written there takes its place when the block ends well.

    Whoever looks, also after a kill or a power cut, finds the old content or the new, whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # A killed process of the same number may have left one, perhaps a second name of a file that matters.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder where the system can, would survive a power cut."""
    if not path.is_dir():
        _flush(path, os.O_RDWR)
        return
    with contextlib.suppress(OSError):
        _flush(path, os.O_RDONLY)


def _flush(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all; its folder is made if need be."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(data)
