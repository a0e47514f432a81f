"""The order of the samples: a pure function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from posenet.data.dataset import SampleKey
from posenet.data.store_list import SampleCounts


class TrainSampler(Sampler[list[SampleKey]]):
    """Batches of keys, in a new random order every epoch.

    All processes divide the same shuffled order into global batches of ``batch_size * world_size`` samples, and each
    yields one slice of every global batch: together they train on what one process would. Samples that do not fill a
    whole optimizer step are left out of the epoch. A data set smaller than one step is repeated to fill it, each time
    with other augmentations.

    With ``sample_counts``, the data set consists of several sets, and an epoch draws the given number of samples from
    each. The samples of a set are drawn in rounds, random orders of all its samples, and every epoch continues where
    the last one has stopped. So after any number of epochs, the numbers of draws of two samples of a set differ by one
    at most. All of this, too, depends only on the seed and the epoch.

    Args:
        length: samples in the data set.
        batch_size: samples per process and batch.
        batches_per_step: batches per optimizer step; an epoch consists of whole steps.
        sample_counts: those of several sets, whose sizes add up to ``length``; empty draws each sample once.

    Attributes:
        steps, batches_per_epoch: optimizer steps and batches per epoch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        batches_per_step: int = 1,
        rank: int = 0,
        world_size: int = 1,
        sample_counts: Sequence[SampleCounts] = (),
    ) -> None:
        if length < 1:
            raise ValueError("a sampler needs at least one sample")
        self.length = length
        self.sample_counts = sample_counts or [SampleCounts(length, length)]
        self.epoch_length = sum(count for _, count in self.sample_counts)
        self.batch_size = batch_size
        self.seed = seed
        self.batches_per_step = batches_per_step
        self.rank = rank
        self.global_batch_size = batch_size * world_size
        self.steps = max(1, self.epoch_length // (self.global_batch_size * batches_per_step))
        self.batches_per_epoch = self.steps * batches_per_step
        self.start(0)

    def start(self, epoch: int, step: int = 0, epochs: int | None = None) -> None:
        """Set where the next iteration starts and ends.

        Args:
            epoch: first epoch.
            step: first optimizer step of that epoch.
            epochs: the iteration ends before this epoch; None ends it after the first one. With one iteration over all
                epochs, the workers of a loader continue with the next epoch without a pause.
        """
        end_epoch = epoch + 1 if epochs is None else max(epochs, epoch + 1)
        self._first_batch = epoch * self.batches_per_epoch + step * self.batches_per_step
        self._end_batch = end_epoch * self.batches_per_epoch

    def __len__(self) -> int:
        return self._end_batch - self._first_batch

    def __iter__(self) -> Iterator[list[SampleKey]]:
        first_epoch, end_epoch = (batch // self.batches_per_epoch for batch in (self._first_batch, self._end_batch))
        for epoch in range(first_epoch, end_epoch):
            order = np.random.default_rng((self.seed, epoch)).permutation(self.epoch_length)
            order = self._fit_to_whole_steps(self._draw(epoch)[order])
            first_of_epoch = max(self._first_batch - epoch * self.batches_per_epoch, 0)
            for batch in range(first_of_epoch, self.batches_per_epoch):
                start = batch * self.global_batch_size + self.rank * self.batch_size
                yield [(epoch, int(index)) for index in order[start : start + self.batch_size]]

    def _fit_to_whole_steps(self, order: np.ndarray) -> np.ndarray:
        """The indices of an epoch's batches: the start of ``order``, or all of it several times.

        Index i + k · length is sample i with another augmentation.
        """
        count = self.batches_per_epoch * self.global_batch_size
        # ``order`` may have such indices already: a repetition gets those above all of them.
        indices_per_round = self.length * (1 + int(order.max()) // self.length)
        rounds = np.arange(count) // len(order)
        return np.resize(order, count) + rounds * indices_per_round

    def _draw(self, epoch: int) -> np.ndarray:
        """(epoch_length,) int64: the samples that an epoch draws, set by set.

        Each time that a sample is drawn again in the same epoch, ``length`` is added to its index, so that its
        augmentation differs.
        """
        drawn = []
        first_of_set = 0
        for number, (size, count) in enumerate(self.sample_counts):
            first_round = epoch * count // max(size, 1)
            last_round = ((epoch + 1) * count - 1) // max(size, 1)  # before the first one if nothing is drawn
            for round_number in range(first_round, last_round + 1):
                start = max(epoch * count - round_number * size, 0)
                stop = min((epoch + 1) * count - round_number * size, size)
                order = np.arange(size)
                if stop - start < size:
                    order = np.random.default_rng((self.seed, number, round_number)).permutation(size)
                repeat = round_number - first_round
                drawn.append(order[start:stop] + first_of_set + repeat * self.length)
            first_of_set += size
        return np.concatenate(drawn)


def validation_batches(length: int, batch_size: int, rank: int, world_size: int) -> list[list[SampleKey]]:
    """Every index exactly once over all processes, in order. The last batch may be smaller."""
    keys = [(0, index) for index in range(rank, length, world_size)]
    return [keys[start : start + batch_size] for start in range(0, len(keys), batch_size)]
