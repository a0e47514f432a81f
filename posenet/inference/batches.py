"""Cutting sequences: into batches, and into the shares of several processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to ``size`` items that follow each other."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def share(items: Sequence[Item], index: int, count: int) -> Sequence[Item]:
    """Part ``index`` of ``count`` parts of about equal size, from 0. The parts in order are the whole."""
    return items[len(items) * index // count : len(items) * (index + 1) // count]
