"""Progress on standard error: a bar on a terminal, a line now and then elsewhere, or nothing."""

import contextlib
import logging
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

from posenet.messages import to_single_line

LINE_SECONDS = 60.0
"""Time between two states of a bar where standard error is no terminal, and before its first one."""

_is_hidden = False
_bars: "weakref.WeakSet[tqdm[Any]]" = weakref.WeakSet()
"""The bars of this process that are shown."""


def _is_terminal() -> bool:
    return hasattr(sys.stderr, "isatty") and sys.stderr.isatty()


def progress_bar(
    items: Iterable[Any] | None = None,
    title: str = "",
    total: int | None = None,
    *,
    unit: str = "image",
    done: int = 0,
    leave: bool = True,
    disable: bool = False,
) -> "tqdm[Any]":
    """A bar over ``items``, or one that its caller updates, on standard error; a line now and then where it is a file.

    Args:
        total: number of items; None for ``len(items)``, or if it is unknown.
        done: number of items that were done earlier.
        leave: whether a finished bar stays on the terminal.
    """
    options: dict[str, Any] = {"desc": to_single_line(title), "total": total, "unit": unit, "initial": done}
    if disable or _is_hidden or not hasattr(sys.stderr, "isatty"):  # as in a service and in a windowed program
        return tqdm(items, disable=True, **options)
    if _is_terminal():
        options |= {"leave": leave, "dynamic_ncols": True}
    else:
        options |= dict.fromkeys(("delay", "mininterval", "maxinterval"), LINE_SECONDS)
        options["bar_format"] = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]\n"
    bar = tqdm(items, **options)
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
        with tqdm.external_write_mode(file=sys.stderr) if _is_terminal() else contextlib.nullcontext():
            super().emit(record)


def close_bars() -> None:
    """End all bars of this process, so that a last message starts on a line of its own."""
    for bar in list(_bars):
        bar.close()
    if _is_terminal():  # where another process may have left a bar
        sys.stderr.write("\r\x1b[K")
