"""Cutting sequences into the shares of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def share(items: Sequence[Item], index: int, count: int) -> Sequence[Item]:
    """Part ``index``, which counts from 0, of ``count`` parts of about equal size. The parts in order are the whole."""
    return items[len(items) * index // count : len(items) * (index + 1) // count]
