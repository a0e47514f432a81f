"""Text of messages: plurals, and strangers' text made short, single-line and safe to print."""

from __future__ import annotations

import reprlib

_short = reprlib.Repr()
_short.maxlevel = 2
_short.maxstring = _short.maxother = _short.maxlong = 60


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``; ``pluralize(3, "person", "people")`` is ``3 people``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def to_single_line(text: str) -> str:
    """A text on one line; characters that a terminal could take for a command become "?"."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def truncate_for_message(value: object) -> str:
    """``repr`` of a value from a file, cut short: nested values can repeat without end."""
    return _short.repr(value)


def without_worker_traceback(message: str) -> str:
    """The message of an error; of one that PyTorch carried over from a data worker, only the error's last line."""
    if message.startswith("Caught ") and "Traceback" in message:
        return message.strip().splitlines()[-1].partition(": ")[2]
    return message
