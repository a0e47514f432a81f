"""The CPU cores of this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """CPU cores this process may run on, which containers and schedulers limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
