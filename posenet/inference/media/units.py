"""Units of work of a prediction: a few images that follow each other, or one video; and shards of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from posenet.errors import ConfigError
from posenet.inference.media.sources import Source

Unit = range
"""Indices of the sources of a unit."""


def split_into_units(sources: Sequence[Source], unit_size: int) -> list[Unit]:
    """Split sources into units: up to ``unit_size`` images that follow each other, or one source of another kind.

    With the batch size of the predictor as ``unit_size``, no batch contains images of two units. So the result for an
    image does not depend on the process that predicts it.
    """
    units: list[Unit] = []
    start = 0
    for index, source in enumerate(sources):
        if source.kind != "image":
            if start < index:
                units.append(range(start, index))
            units.append(range(index, index + 1))
            start = index + 1
        elif index + 1 - start == unit_size:
            units.append(range(start, index + 1))
            start = index + 1
    if start < len(sources):
        units.append(range(start, len(sources)))
    return units


@dataclass(frozen=True)
class Shard:
    """One of several parts of the units, each of which another run predicts."""

    index: int
    """From 0."""
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``3/100``.

        Raises:
            ConfigError: it is not a shard, or the index is not below the count.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ConfigError(f"--shard {text}: give the number of the shard and their count, such as 0/100")
        shard = cls(int(match[1]), int(match[2]))
        if shard.index >= shard.count:
            raise ConfigError(f"--shard {text}: shards count from 0, so the first number must be below the second")
        return shard

    def select(self, num_units: int) -> range:
        """The numbers of the shard's units.

        They are consecutive, so that the results of all shards in order are those of one run.
        """
        return range(num_units * self.index // self.count, num_units * (self.index + 1) // self.count)


WHOLE = Shard(0, 1)
