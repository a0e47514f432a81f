"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 picture``, ``2 pictures``; ``counted(3, "person", "people")`` is ``3 people``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
