"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 picture``, ``2 pictures``; ``counted(3, "person", "people")`` is ``3 people``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """A text on one line; what a terminal would take for a command, such as in a name out of a file, becomes "?"."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
