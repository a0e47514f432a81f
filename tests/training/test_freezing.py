"""Freezing parameters by name, and the training mode of a partly frozen network."""

from __future__ import annotations

import fnmatch

import pytest
import torch

from posenet.errors import ConfigError
from posenet.model.posenet import PoseNet
from posenet.training.batch_norm import batch_norm_layers
from posenet.training.freezing import ALL_BUT_HEADS, freeze, set_train_mode
from tests.helpers.networks import conv_and_batch_norm, tiny_network


@pytest.fixture
def network() -> PoseNet:
    return tiny_network()


def trained_names(network: PoseNet) -> set[str]:
    return {name for name, parameter in network.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "patterns",
    [
        ["stem.*"],
        ["stem.*", "stacks.0.*"],
        ["*.weight"],
        ["stem.entry.conv.weight"],
        ["stacks.[01].hourglass.*"],
        ["*"],
    ],
)
def test_exactly_the_matching_parameters_are_frozen(network: PoseNet, patterns: list[str]) -> None:
    names = {name for name, _ in network.named_parameters()}
    matching = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    assert matching
    assert freeze(network, patterns) == sorted(matching)
    assert trained_names(network) == names - matching


def test_all_but_heads_freezes_everything_outside_the_heads(network: PoseNet) -> None:
    frozen = freeze(network, [ALL_BUT_HEADS])
    trained = trained_names(network)
    assert trained == set(network.head_parameter_names())
    assert all(".heads." in name for name in trained)
    assert not any(".heads." in name for name in frozen)
    assert any(name.startswith("stem.") for name in frozen)


def test_all_but_heads_can_be_combined_with_patterns(network: PoseNet) -> None:
    freeze(network, [ALL_BUT_HEADS, "stacks.0.*"])
    trained = trained_names(network)
    assert trained
    assert all(name.startswith("stacks.1.heads.") for name in trained)


@pytest.mark.parametrize("patterns", [["stm.*"], ["stem.*", "head"], [""], ["stem"], ["all_but_heads"]])
def test_a_pattern_without_a_match_is_named_and_nothing_is_frozen(network: PoseNet, patterns: list[str]) -> None:
    with pytest.raises(ConfigError, match="matches no parameter") as caught:
        freeze(network, patterns)
    message = str(caught.value)
    assert repr(patterns[-1]) in message
    assert "\n" not in message
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_without_patterns_nothing_is_frozen(network: PoseNet) -> None:
    assert freeze(network, []) == []
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_only_frozen_batch_norm_layers_keep_their_statistics() -> None:
    model = conv_and_batch_norm()
    _, frozen_norm, _, trained_norm = model
    freeze(model, ["1.*"])
    set_train_mode(model)
    assert model.training
    model(torch.randn(4, 1, 8, 8))
    assert torch.equal(frozen_norm.running_mean, torch.zeros(2))
    assert not torch.equal(trained_norm.running_mean, torch.zeros(2))


def test_a_batch_norm_layer_with_one_frozen_parameter_still_updates_its_statistics() -> None:
    model = conv_and_batch_norm()
    freeze(model, ["1.weight"])
    set_train_mode(model)
    assert model[1].training


def test_train_mode_after_evaluation_affects_only_the_batch_norm_layers_that_are_trained(network: PoseNet) -> None:
    freeze(network, [ALL_BUT_HEADS])
    network.eval()
    set_train_mode(network)
    head_modules = {id(module) for stack in network.stacks for module in stack.heads.modules()}
    layers = batch_norm_layers(network)
    assert layers
    for layer in layers:
        assert layer.training == (id(layer) in head_modules)
