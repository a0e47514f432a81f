"""Freezing parameters by name, and the training mode of a partly frozen network."""

from __future__ import annotations

import fnmatch

import pytest
import torch
from torch import nn

from posenet.errors import ConfigError
from posenet.settings import OptimConfig
from posenet.training.freezing import ALL_BUT_HEADS, batch_norm_layers, freeze, set_train_mode
from posenet.training.optimizer import make_optimizer
from tests.helpers.networks import conv_and_batch_norm, tiny_network


def trained_names(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "patterns", [[], ["stem.*", "stacks.0.*"], ["stem.entry.conv.weight"], ["stacks.[01].hourglass.*"], ["*"]]
)
def test_exactly_the_matching_parameters_are_frozen(patterns: list[str]) -> None:
    network = tiny_network()
    names = {name for name, _ in network.named_parameters()}
    matching = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    assert bool(matching) == bool(patterns)
    assert freeze(network, patterns) == sorted(matching)
    assert trained_names(network) == names - matching


def test_all_but_heads_leaves_the_heads_and_can_be_combined_with_patterns() -> None:
    network = tiny_network()
    freeze(network, [ALL_BUT_HEADS])
    assert trained_names(network) == set(network.head_parameter_names())
    assert all(".heads." in name for name in trained_names(network))
    freeze(network, [ALL_BUT_HEADS, "stacks.0.*"])
    assert trained_names(network) and all(name.startswith("stacks.1.heads.") for name in trained_names(network))


@pytest.mark.parametrize("patterns", [["stm.*"], ["stem.*", "head"], [""], ["stem"], ["all_but_heads"]])
def test_a_pattern_without_a_match_is_named_and_nothing_is_frozen(patterns: list[str]) -> None:
    network = tiny_network()
    with pytest.raises(ConfigError, match=f"{patterns[-1]!r} matches no parameter"):
        freeze(network, patterns)
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_frozen_parameters_and_statistics_stay_bit_identical(name: str) -> None:
    """Those of a BatchNorm layer with one frozen parameter do not."""
    model = conv_and_batch_norm()
    freeze(model, ["0.*", "1.*", "3.bias"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = make_optimizer(model, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
    for _ in range(3):
        model.eval()
        set_train_mode(model)
        model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert {"2.weight", "3.running_mean", "3.weight"} <= changed
    assert not any(key.startswith(("0.", "1.", "3.bias")) for key in changed)


def test_synchronized_layers_are_batch_norm_layers_too() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.SyncBatchNorm(2), nn.Conv2d(2, 2, 1))
    assert batch_norm_layers(model) == [model[0], model[1]]
