"""Text of messages: plurals, marked warnings, and text from files, shortened to a line that is safe to print."""

from __future__ import annotations

import logging
import reprlib

_short_repr = reprlib.Repr()
_short_repr.maxlevel = 2
_short_repr.maxstring = 60
_short_repr.maxother = 60
_short_repr.maxlong = 60


class MessageFormatter(logging.Formatter):
    """Marks warnings and errors with their level, at ``%(mark)s`` in the format: ``WARNING: the loss is bad``."""

    def format(self, record: logging.LogRecord) -> str:
        record.mark = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return super().format(record)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``; ``pluralize(3, "person", "people")`` is ``3 people``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or noun + 's'}"


def to_single_line(text: str) -> str:
    """Join the lines of a text; replace characters that could control a terminal by "?"."""
    single_line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in single_line)


def truncate_for_message(value: object) -> str:
    """``repr`` of a value from a file, shortened, because the value can be of any length and depth."""
    return _short_repr.repr(value)


def first_sentence(error: Exception) -> str:
    """The first sentence of the first line of an error's message, which names the cause in errors of PyTorch."""
    return str(error).partition("\n")[0].partition(". ")[0]


def without_worker_traceback(message: str) -> str:
    """The original message of an error to which PyTorch has added the traceback of a data worker."""
    if message.startswith("Caught ") and "Traceback" in message:
        last_line = message.strip().splitlines()[-1]
        return last_line.partition(": ")[2]
    return message
