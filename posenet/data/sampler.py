"""Which sample comes when: a pure function of (seed, epoch), the same for one process and for many."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

Key = tuple[int, int]
"""(epoch, index): everything a sample's augmentation depends on besides the seed."""


class TrainSampler(Sampler[list[Key]]):
    """Batches of (epoch, index) keys in a fresh order every epoch.

    All processes cut the same shuffled order into global batches of ``batch_size * world_size`` and each takes
    its own slice, so together they see what one process with the global batch would. The rest that does not
    fill a global batch is left out of the epoch; a set smaller than one global batch is repeated to fill it.

    Args:
        length: samples in the data set.
        batch_size: samples per process and batch.
        batches_per_step: batches that make one optimizer step; an epoch holds whole steps only.

    Attributes:
        skip: batches that the next iteration leaves out.
    """

    skip = 0

    def __init__(
        self, length: int, batch_size: int, seed: int, batches_per_step: int = 1, rank: int = 0, world_size: int = 1
    ) -> None:
        if length < 1:
            raise ValueError("a sampler needs at least one sample")
        self.length, self.batch_size, self.seed, self.rank = length, batch_size, seed, rank
        self.batches_per_step = batches_per_step
        self.global_batch = batch_size * world_size
        self.start(0)

    @property
    def steps(self) -> int:
        """Optimizer steps of a whole epoch."""
        return max(1, self.length // (self.global_batch * self.batches_per_step))

    def start(self, epoch: int, step: int = 0, epochs: int | None = None) -> None:
        """Make the next iteration run from an optimizer step of ``epoch`` to the end of that epoch.

        Args:
            epochs: go on to the end of so many in all, so that a loader's workers never wait for the next to begin.
        """
        per_epoch = self.steps * self.batches_per_step
        self._first = epoch * per_epoch + step * self.batches_per_step
        self._end = max(epochs or 0, epoch + 1) * per_epoch

    def __len__(self) -> int:
        return self._end - self._first

    def __iter__(self) -> Iterator[list[Key]]:
        per_epoch, first = self.steps * self.batches_per_step, self._first + self.skip
        for epoch in range(first // per_epoch, self._end // per_epoch):
            order = np.random.default_rng((self.seed, epoch)).permutation(self.length)
            order = np.resize(order, per_epoch * self.global_batch)
            for batch in range(max(first - epoch * per_epoch, 0), per_epoch):
                start = batch * self.global_batch + self.rank * self.batch_size
                yield [(epoch, int(i)) for i in order[start : start + self.batch_size]]


class ValidationSampler(Sampler[list[Key]]):
    """Every index exactly once over all processes, in order; the last batch may be smaller.

    Attributes:
        skip: batches that the next iteration leaves out.
    """

    skip = 0

    def __init__(self, length: int, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.indices = range(rank, length, world_size)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        for start in range(self.skip * self.batch_size, len(self.indices), self.batch_size):
            yield [(0, i) for i in self.indices[start : start + self.batch_size]]
