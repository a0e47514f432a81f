"""A profile of some steps of a run: which operations take their time."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, schedule

from posenet.messages import pluralize

PROFILE_FILE = "profile.json"
OWN_PROFILE = re.compile(rb'\s*\{\s*"schemaVersion"|\Z')
"""How a profile begins."""
WARMUP_STEPS = 5
"""Steps before those that are profiled: the first ones allocate memory, choose algorithms and compile."""
TABLE_ROWS = 12

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def profiled_steps(folder: Path, num_steps: int, device: torch.device) -> Iterator[Callable[[], None]]:
    """Profile ``num_steps`` steps after ``WARMUP_STEPS`` others; yield a function to call after every step of the run.

    After the last of them, or at the end of the context if that comes first, the operations that took most time are
    logged, and the timeline is written to ``PROFILE_FILE`` in the folder. 0 profiles nothing.
    """
    if not num_steps:
        yield lambda: None
        return
    steps = schedule(skip_first=WARMUP_STEPS - 1, wait=0, warmup=1, active=num_steps, repeat=1)
    report = functools.partial(_report, folder / PROFILE_FILE, num_steps, device)
    with profile(schedule=steps, on_trace_ready=report) as profiler:
        yield profiler.step


def _report(path: Path, num_steps: int, device: torch.device, profiler: Any) -> None:
    """Write the timeline and log the table; only warn if the file cannot be written."""
    timeline = ""
    try:
        path.unlink(missing_ok=True)
        profiler.export_chrome_trace(str(path))  # which prints most errors and raises none
        path.stat()
        timeline = f"; open {path} at https://ui.perfetto.dev for the timeline"
    except (OSError, RuntimeError) as error:
        _log.warning("%s was not written: %s", path, error)
    order = "self_cpu_time_total" if device.type == "cpu" else "self_device_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=TABLE_ROWS, max_name_column_width=50)
    _log.info("Profile of %s%s\n%s", pluralize(num_steps, "step"), timeline, table)
