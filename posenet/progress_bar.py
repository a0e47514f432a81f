"""Progress on standard error: a bar on a terminal, a plain line now and then elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

from posenet.messages import to_single_line

LINE_SECONDS = 60.0
"""Time between two plain lines of a bar, and before its first one."""

_is_hidden = False
_bars: weakref.WeakSet[tqdm[Any]] = weakref.WeakSet()
"""The bars of this process that are shown."""


class _PlainLines(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar that writes a plain line every ``LINE_SECONDS``, and none before."""

    last_print_t: float

    def __init__(self, *args: Any, **options: Any) -> None:
        # With gui, tqdm leaves all output to ``display`` and ``clear``; without columns it draws no bar.
        times = {"delay": LINE_SECONDS, "mininterval": LINE_SECONDS, "maxinterval": LINE_SECONDS}
        super().__init__(*args, gui=True, ncols=0, **times, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        # Messages beside the bar and a new postfix ask for a line, too.
        if time.time() - self.last_print_t >= LINE_SECONDS:
            self.last_print_t = time.time()
            self.fp.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self}\n")
            self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Clear nothing: a line stays."""


def progress_bar(
    items: Iterable[Any] | None = None,
    title: str = "",
    total: int | None = None,
    *,
    unit: str = "image",
    done: int = 0,
    leave: bool = True,
    disable: bool = False,
) -> tqdm[Any]:
    """A bar over ``items``, or one that its caller updates, on standard error; plain lines where that is no terminal.

    Args:
        total: number of items; None for ``len(items)``, or if it is unknown.
        done: number of items that were done earlier.
        leave: whether a finished bar stays on the terminal.
    """
    options: dict[str, Any] = {"desc": to_single_line(title), "total": total, "unit": unit, "initial": done}
    if disable or _is_hidden or not hasattr(sys.stderr, "isatty"):  # as in a service and in a windowed program
        return tqdm(items, disable=True, **options)
    tqdm.get_lock()  # makes the lock of all bars; else the class of the first bar would have one of its own
    if sys.stderr.isatty():
        bar = tqdm(items, leave=leave, dynamic_ncols=True, **options)
    else:
        bar = _PlainLines(items, **options)
    _bars.add(bar)
    return bar


@contextlib.contextmanager
def hide_progress() -> Iterator[None]:
    """Within this context, new bars show nothing."""
    global _is_hidden
    was_hidden = _is_hidden
    _is_hidden = True
    try:
        yield
    finally:
        _is_hidden = was_hidden


class AboveBarHandler(logging.StreamHandler[TextIO]):
    """Writes log messages above the bars of this process, never into the line of one."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            super().emit(record)


def close_bars() -> None:
    """End all bars of this process, so that a last message starts on a line of its own."""
    for bar in list(_bars):
        bar.close()
    if hasattr(sys.stderr, "isatty") and sys.stderr.isatty():  # where another process may have left a bar
        sys.stderr.write("\r\x1b[K")
