"""What the operating system gives: cores to run on, and files that are replaced whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h."""


def usable_cores() -> int:
    """CPU cores this process may run on, which containers and schedulers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for its next pictures; without glibc nothing happens.

    Otherwise the C library gives every picture back to the system at once and takes the next one's pages from it anew,
    which takes a fifth of the time of decoding it.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that glibc takes
        mallopt(M_TRIM_THRESHOLD, 2**30)


def free_shared_memory() -> int | None:
    """Bytes left for memory that processes share; None where the system sets no limit of its own."""
    try:
        space = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return space.f_bavail * space.f_frsize


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
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
    with replacing(path) as temporary:
        temporary.write_bytes(data)
