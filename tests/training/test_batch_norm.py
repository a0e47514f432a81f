"""Copies of BatchNorm statistics."""

from __future__ import annotations

import torch

from posenet.training.step import BatchNormStatistics, batch_norm_layers
from tests.helpers.networks import tiny_network
from tests.helpers.process_runs import find_differences


def test_statistics_are_restored_and_copying_them_takes_one_operation_for_each_dtype() -> None:
    network = tiny_network(stacks=1)
    statistics = BatchNormStatistics(network)
    network.train()(torch.rand(2, 3, 64, 64))
    with torch.profiler.profile() as profiler:
        copied = statistics.read()
    operations = [event.name for event in profiler.events()]
    assert operations.count("aten::cat") == len(copied) == 2
    assert "aten::view" not in operations
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    for layer in batch_norm_layers(network):
        for buffer in layer.buffers():
            buffer.add_(1)
    assert find_differences(network.state_dict(), expected) != []
    statistics.write(copied)
    assert find_differences(network.state_dict(), expected) == []
