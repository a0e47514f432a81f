"""The CPU cores that this process can use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Number of CPU cores that this process may use; containers and schedulers can limit it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
