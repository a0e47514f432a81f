"""Cutting sequences: into the shares of several processes, and into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to ``size`` items that follow each other. After an error of ``items``, those before it come first."""
    batch: list[Item] = []
    try:
        for item in items:
            batch.append(item)
            if len(batch) == size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def share(items: Sequence[Item], index: int, count: int) -> Sequence[Item]:
    """Part ``index``, which counts from 0, of ``count`` parts of about equal size. The parts in order are the whole."""
    return items[len(items) * index // count : len(items) * (index + 1) // count]
