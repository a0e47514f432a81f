"""Samplers: permutations, several processes, resuming, small data sets and the order of validation."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from posenet.data.dataset import SampleKey
from posenet.data.loader import TrainSampler, validation_batches
from posenet.data.store_list import SampleCounts

COUNTS = (SampleCounts(7, 7), SampleCounts(10, 4), SampleCounts(5, 12))
"""Three sets with the weights 1, 0.4 and 2.4: an epoch draws 23 of 22 samples."""


def keys(sampler: TrainSampler, epoch: int, step: int = 0) -> list[list[SampleKey]]:
    sampler.start(epoch, step)
    return list(sampler)


def indices(batches: list[list[SampleKey]]) -> list[int]:
    return [index for _, index in chain.from_iterable(batches)]


@pytest.mark.parametrize("length, batch_size, per_step", [(12, 4, 1), (13, 4, 1), (29, 3, 2), (5, 5, 1), (7, 1, 3)])
def test_an_epoch_is_a_permutation_of_whole_steps(length: int, batch_size: int, per_step: int) -> None:
    sampler = TrainSampler(length, batch_size, seed=0, batches_per_step=per_step)
    batches = keys(sampler, epoch=2)
    seen = indices(batches)
    assert len(set(seen)) == len(seen) and set(seen) <= set(range(length))
    assert length - len(seen) < batch_size * per_step
    assert [len(batch) for batch in batches] == [batch_size] * len(sampler)
    assert len(sampler) == sampler.steps * per_step
    assert {epoch for epoch, _ in chain.from_iterable(batches)} == {2}
    assert {type(part) for key in batches[0] for part in key} == {int}


@pytest.mark.parametrize("counts", [(), (SampleCounts(50, 50),), (SampleCounts(50, 10),)])
def test_every_epoch_and_every_seed_has_another_order(counts: tuple[SampleCounts, ...]) -> None:
    orders = [
        indices(keys(TrainSampler(50, 5, seed, sample_counts=counts), epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len(set(map(tuple, orders))) == 4
    if counts == (SampleCounts(50, 10),):
        assert len(set(map(frozenset, orders))) == 4, "other samples too"


@pytest.mark.parametrize(
    "length, world_size, batch_size, per_step, counts",
    [(50, 4, 2, 1, ()), (50, 2, 3, 2, ()), (5, 2, 4, 1, ()), (22, 3, 2, 1, COUNTS)],
)
def test_several_processes_together_equal_one_with_the_global_batch(
    length: int, world_size: int, batch_size: int, per_step: int, counts: tuple[SampleCounts, ...]
) -> None:
    alone = TrainSampler(length, batch_size * world_size, 0, per_step, sample_counts=counts)
    shards = [
        TrainSampler(length, batch_size, 0, per_step, rank, world_size, sample_counts=counts)
        for rank in range(world_size)
    ]
    assert {shard.steps for shard in shards} == {alone.steps}
    together = zip(*(keys(shard, 1) for shard in shards))
    assert [list(chain.from_iterable(batches)) for batches in together] == keys(alone, 1)


@pytest.mark.parametrize("length, per_step, counts", [(50, 1, ()), (50, 3, ()), (22, 1, COUNTS)])
def test_an_epoch_continues_at_any_step(length: int, per_step: int, counts: tuple[SampleCounts, ...]) -> None:
    sampler = TrainSampler(length, 4, 0, per_step, sample_counts=counts)
    whole = keys(sampler, epoch=3)
    for step in range(sampler.steps + 1):
        rest = keys(sampler, 3, step)
        assert rest == whole[step * per_step :] and len(sampler) == len(rest)
    assert keys(sampler, 3) == whole


@pytest.mark.parametrize("per_step", [1, 3])
def test_one_iteration_covers_several_epochs(per_step: int) -> None:
    sampler = TrainSampler(50, 4, 0, per_step)
    one_by_one = keys(sampler, 1, 2) + keys(sampler, 2) + keys(sampler, 3)
    sampler.start(1, 2, epochs=4)
    assert len(sampler) == len(one_by_one)
    assert list(sampler) == one_by_one


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_small_data_set_is_repeated_until_it_fills_one_step(world_size: int) -> None:
    shards = [TrainSampler(3, 4, 0, batches_per_step=2, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {shard.steps for shard in shards} == {1}
    seen = list(chain.from_iterable(indices(keys(shard, 0)) for shard in shards))
    counts = [sum(index % 3 == i for index in seen) for i in range(3)]
    assert sum(counts) == 8 * world_size and max(counts) - min(counts) <= 1
    assert len(set(seen)) == len(seen), "a sample has another augmentation each time"


def test_an_epoch_draws_the_configured_number_from_every_set_and_its_samples_equally_often() -> None:
    sampler = TrainSampler(22, 1, seed=0, sample_counts=COUNTS)
    counts = np.zeros(22, int)
    for epoch in range(11):
        seen = indices(keys(sampler, epoch))
        assert len(set(seen)) == 23 and max(seen) >= 22, "a sample that is repeated has another index"
        drawn = np.bincount(np.array(seen) % 22, minlength=22)
        assert [drawn[:7].sum(), drawn[7:17].sum(), drawn[17:].sum()] == [7, 4, 12]
        counts += drawn
        assert all(np.ptp(times) <= 1 for times in (counts[:7], counts[7:17], counts[17:]))


@pytest.mark.parametrize("length", [0, 1, 8, 9])
@pytest.mark.parametrize("world_size", [1, 3])
def test_validation_covers_every_index_once_over_all_processes(length: int, world_size: int) -> None:
    batches = [validation_batches(length, 2, rank, world_size) for rank in range(world_size)]
    assert sorted(chain.from_iterable(map(indices, batches))) == list(range(length))
    assert all(indices(of_rank) == sorted(indices(of_rank)) for of_rank in batches)
    assert all(1 <= len(batch) <= 2 for batch in chain.from_iterable(batches))
    assert all(epoch == 0 for epoch, _ in chain.from_iterable(chain.from_iterable(batches)))
