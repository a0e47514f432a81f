"""Messages of the command line on standard error, above progress bars."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from posenet.messages import MessageFormatter
from posenet.progress_bar import AboveBarHandler, above_bars, close_bars, hide_progress


@contextlib.contextmanager
def log_to_stderr(quiet: bool = False, rank: int = 0) -> Iterator[None]:
    """Show log messages and warnings of Python on standard error.

    Args:
        quiet: show only warnings and errors, and no progress.
        rank: number of this process. Processes other than rank 0 show only what concerns them alone: errors, and
            warnings about their part of the data.
    """
    root = logging.getLogger()
    handler = AboveBarHandler(sys.stderr)
    handler.setLevel(logging.WARNING if quiet or rank else logging.INFO)
    levels = {root: root.level}
    handler.setFormatter(MessageFormatter((f"rank {rank}: " if rank else "") + "%(mark)s%(message)s"))
    if rank:
        for name, level in {"posenet": logging.ERROR, "posenet.training.input": logging.WARNING}.items():
            logger = logging.getLogger(name)
            levels[logger] = logger.level
            logger.setLevel(level)
    # A program that calls a tool may show log messages itself.
    is_needed = not any(_writes_to_console(other) for other in root.handlers)
    if is_needed:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    show_warning = warnings.showwarning

    def show_warning_above_bars(*args: Any, **options: Any) -> None:
        with above_bars():
            show_warning(*args, **options)

    warnings.showwarning = show_warning_above_bars
    try:
        with hide_progress() if quiet or rank else contextlib.nullcontext():
            yield
    finally:
        warnings.showwarning = show_warning
        if is_needed:
            root.removeHandler(handler)
        for logger, level in levels.items():
            logger.setLevel(level)


def _writes_to_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)


def report_error(prog: str, message: str) -> None:
    """Print why a tool ends."""
    close_bars()
    # One write call: print writes the line end separately, and another process could write in between.
    sys.stderr.write(f"{prog}: {message}\n")
    sys.stderr.flush()
