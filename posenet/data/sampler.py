"""Which sample comes when: a pure function of (seed, epoch), the same for one process and for many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

Key = tuple[int, int]
"""(epoch, index): everything a sample's augmentation depends on besides the seed."""


class _Resumable(Sampler[list[Key]]):
    """A sampler whose next iteration can leave out the first ``skip`` batches."""

    skip = 0

    def batches(self) -> Iterator[list[Key]]:
        """All batches, in order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[Key]]:
        return itertools.islice(self.batches(), self.skip, None)


class TrainSampler(_Resumable):
    """Batches of (epoch, index) keys in a fresh order every epoch.

    All processes cut the same shuffled order into global batches of ``batch_size * world`` and each takes
    its own slice, so together they see what one process with the global batch would. The rest that does not
    fill a global batch is left out of the epoch; a set smaller than one global batch is repeated to fill it.

    Args:
        length: samples in the data set.
        batch_size: samples per process and batch.
        batches_per_step: batches that make one optimizer step; an epoch holds whole steps only.
    """

    def __init__(self, length: int, batch_size: int, seed: int, batches_per_step: int = 1, rank: int = 0,
                 world: int = 1) -> None:
        if length < 1:
            raise ValueError("a sampler needs at least one sample")
        self.length, self.batch_size, self.seed, self.rank = length, batch_size, seed, rank
        self.batches_per_step = batches_per_step
        self.global_batch = batch_size * world
        self.epoch, self.first_step = 0, 0

    @property
    def steps(self) -> int:
        """Optimizer steps of a whole epoch."""
        return max(1, self.length // (self.global_batch * self.batches_per_step))

    def start(self, epoch: int, step: int = 0) -> None:
        """Make the next iteration run over ``epoch`` from optimizer step ``step`` on."""
        self.epoch, self.first_step = epoch, step

    def __len__(self) -> int:
        return (self.steps - self.first_step) * self.batches_per_step

    def batches(self) -> Iterator[list[Key]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.length)
        order = np.resize(order, self.steps * self.batches_per_step * self.global_batch)
        for batch in range(self.first_step * self.batches_per_step, self.steps * self.batches_per_step):
            start = batch * self.global_batch + self.rank * self.batch_size
            yield [(self.epoch, int(i)) for i in order[start:start + self.batch_size]]


class ValidationSampler(_Resumable):
    """Every index exactly once over all processes, in order; the last batch may be smaller."""

    def __init__(self, length: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.indices = range(rank, length, world)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def batches(self) -> Iterator[list[Key]]:
        for start in range(0, len(self.indices), self.batch_size):
            yield [(0, i) for i in self.indices[start:start + self.batch_size]]
