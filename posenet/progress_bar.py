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
"""Time between two plain lines of a process, and before its first one."""
UPDATE_SECONDS = 1.0
"""How often a bar without a terminal looks whether a line is due."""

_is_hidden = False
_bars: weakref.WeakSet[tqdm[Any]] = weakref.WeakSet()
"""The bars of this process that are shown."""
_last_line_at = time.monotonic()
"""All bars of a process share it, so that many short ones write little."""


class _PlainLines(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar that writes a plain line every ``LINE_SECONDS``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # With gui, tqdm leaves all output to ``display`` and ``clear`` of a subclass.
        super().__init__(*args, gui=True, mininterval=UPDATE_SECONDS, maxinterval=UPDATE_SECONDS, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        global _last_line_at
        if time.monotonic() - _last_line_at >= LINE_SECONDS:
            _last_line_at = time.monotonic()
            self.fp.write(self._line() + "\n")
            self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Clear nothing: a line stays."""

    def _line(self) -> str:
        """Time, title, count, rate, time left, and the text of ``set_postfix_str``."""
        values = self.format_dict
        elapsed = values["elapsed"]
        count = f"{self.unit.strip()} {self.n}"
        if self.total:
            count += f"/{self.total} ({self.n / self.total:.0%})"
        parts = [count]
        rate = (self.n - self.initial) / elapsed if elapsed else 0
        if rate:
            parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each")
            if self.total:
                parts.append(f"{self.format_interval(max(self.total - self.n, 0) / rate)} left")
        if self.postfix:
            parts.append(self.postfix)
        return f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self.desc.removesuffix(': ')}: {', '.join(parts)}"


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
        unit: name of one item.
        done: number of items that were done earlier.
        leave: whether a finished bar stays on the terminal.
    """
    options: dict[str, Any] = {"desc": to_single_line(title), "total": total, "unit": unit, "initial": done}
    if disable or _is_hidden:
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
        with above_bars():
            super().emit(record)


@contextlib.contextmanager
def above_bars() -> Iterator[None]:
    """Within this context, standard error has no bars; they come back below what was written there."""
    with tqdm.external_write_mode(file=sys.stderr):
        yield


def close_bars() -> None:
    """End all bars of this process, so that a last message starts on a line of its own."""
    for bar in list(_bars):
        bar.close()
    if sys.stderr.isatty():
        # Another process may have left a bar on this line.
        sys.stderr.write("\r\x1b[K")
