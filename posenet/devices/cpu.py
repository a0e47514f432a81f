"""The CPU cores and the memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h."""


def usable_cores() -> int:
    """CPU cores this process may run on, which containers and schedulers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for its next images; without glibc nothing happens.

    Otherwise the C library gives every image back to the system at once and takes the next one's pages from it anew,
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
