"""Layers: BatchNorm with batches that the network counts."""

from __future__ import annotations

import torch
from torch import nn

from posenet.model.layers import BatchNorm2d, ConvNorm, count_batches
from tests.helpers.data_parallel_replicas import replicate
from tests.helpers.networks import tiny_network


def norms_of(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def test_batch_norm_computes_what_that_of_pytorch_computes() -> None:
    ours = BatchNorm2d(3)
    pytorchs = nn.BatchNorm2d(3)
    for training in (True, False):
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(ours.train(training)(x), pytorchs.train(training)(x))
    assert torch.equal(ours.running_mean, pytorchs.running_mean)
    assert torch.equal(ours.running_var, pytorchs.running_var)
    assert list(ours.state_dict()) == list(pytorchs.state_dict())


def test_layers_in_evaluation_mode_and_those_that_count_themselves_are_not_counted() -> None:
    trained, frozen, other = (ConvNorm(1, 1, 1) for _ in range(3))
    frozen.norm.eval()
    other.norm = nn.BatchNorm2d(1)
    count_batches([trained, frozen, other])
    assert [layer.norm.num_batches_tracked.item() for layer in (trained, frozen, other)] == [1, 0, 0]


def test_one_operation_counts_the_batches_of_all_layers() -> None:
    network = tiny_network()
    images = torch.rand(2, 3, 64, 64)
    with torch.profiler.profile() as profile:
        network(images)
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::_foreach_add_"] == 1
    assert len(norms_of(network)) > 100
    assert {norm.num_batches_tracked.item() for norm in norms_of(network)} == {1}


def test_a_data_parallel_replica_counts_in_its_own_buffers() -> None:
    network = tiny_network(stacks=1)
    replica = replicate(network)
    replica(torch.rand(2, 3, 64, 64))
    assert {norm.num_batches_tracked.item() for norm in norms_of(network)} == {0}
    assert {norm.num_batches_tracked.item() for norm in norms_of(replica)} == {1}


def test_evaluation_and_heatmaps_count_nothing() -> None:
    network = tiny_network(stacks=1)
    images = torch.rand(2, 3, 64, 64)
    network.heatmaps(images)
    network.eval()(images)
    assert {norm.num_batches_tracked.item() for norm in norms_of(network)} == {0}
