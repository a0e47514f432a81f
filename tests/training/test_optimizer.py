"""What is trained and how: freezing by name, the optimizer, the learning rate of every step."""

import copy
import dataclasses
import fnmatch
import itertools

import pytest
import torch
from torch import nn

from posenet.errors import ConfigError
from posenet.settings import AverageConfig, Config, OptimConfig, TrainConfig
from posenet.training.optimizer import (
    ALL_BUT_HEADS,
    freeze,
    learning_rate,
    make_optimizer,
    restore_optimizer,
    set_train_mode,
)
from tests.helpers.networks import conv_and_batch_norm, tiny_network

STEPS = 10
"""Steps of an epoch."""


def trained_names(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("patterns", [[], ["stem.*", "stacks.0.*"], ["stem.entry.conv.weight"], ["*"]])
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


@pytest.mark.parametrize("patterns", [["stem.*", "head"], ["all_but_heads"]])
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


def test_a_state_of_other_parameters_is_refused() -> None:
    wide, narrow = (torch.nn.Linear(size, 1, bias=False) for size in (3, 2))
    trained = make_optimizer(wide, OptimConfig())
    wide(torch.ones(1, 3)).sum().backward()
    trained.step()
    with pytest.raises(ValueError, match="parameters with other shapes"):
        restore_optimizer(make_optimizer(narrow, OptimConfig()), trained.state_dict())
    restored = make_optimizer(wide, OptimConfig(weight_decay=0.3))
    restore_optimizer(restored, trained.state_dict())
    assert restored.param_groups[0]["weight_decay"] == 0.3, "a new setting counts"


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_restored_state_belongs_to_the_same_weights_in_another_memory_format(name: str) -> None:
    settings = OptimConfig(name, lr=0.1)
    gradients = torch.randn(2, 4, 3, 3, 3, generator=torch.Generator().manual_seed(1))

    def step(conv: torch.nn.Conv2d, optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
        conv.weight.grad = torch.empty_like(conv.weight).copy_(gradient)
        optimizer.step()

    uninterrupted = torch.nn.Conv2d(3, 4, 3, bias=False)
    optimizer = make_optimizer(uninterrupted, settings)
    step(uninterrupted, optimizer, gradients[0])
    resumed = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)
    resumed.load_state_dict(uninterrupted.state_dict())
    resumed_optimizer = make_optimizer(resumed, settings)
    restore_optimizer(resumed_optimizer, copy.deepcopy(optimizer.state_dict()))
    step(uninterrupted, optimizer, gradients[1])
    step(resumed, resumed_optimizer, gradients[1])
    torch.testing.assert_close(resumed.weight, uninterrupted.weight, rtol=1e-6, atol=1e-7)


def rates(optim: OptimConfig, epochs: int, world_size: int = 1, **sections: AverageConfig) -> list[float]:
    """The learning rates of all steps of a run."""
    config = Config(optim=optim, train=TrainConfig(epochs=epochs), **sections)
    positions = itertools.product(range(epochs), range(STEPS))
    return [learning_rate(config, world_size, epoch, step, STEPS) for epoch, step in positions]


@pytest.mark.parametrize(
    "epoch, step, expected",
    [(0, 0, 1 / 30), (0, 9, 10 / 30), (1, 4, 15 / 30), (2, 8, 29 / 30), (2, 9, 1), (14, 9, 1), (15, 0, 0.2)]
    + [(29, 9, 0.2), (30, 0, 0.04), (60, 5, 0.0016), (78, 0, 0.00032), (90, 0, 0.000064), (99, 9, 0.000064)],
)
def test_a_stepwise_rate_has_these_values(epoch: int, step: int, expected: float) -> None:
    config = Config(optim=OptimConfig(lr=2.0, warmup_epochs=3, schedule="step"))
    assert learning_rate(config, 1, epoch, step, STEPS) == pytest.approx(2 * expected, rel=1e-9)


def test_a_cosine_falls_from_the_full_rate_to_zero_over_the_whole_run() -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, schedule="cosine")
    found = rates(settings, 4, world_size=2)
    expected = {0: 1, 10: 0.8535534, 20: 0.5, 25: 0.3086583, 30: 0.1464466, 39: 0.0015413}
    assert {number: found[number] for number in expected} == pytest.approx(expected, rel=1e-4)
    with_warmup = rates(dataclasses.replace(settings, warmup_epochs=2), 4, world_size=2)
    shares = [min(1, (number + 1) / (2 * STEPS)) for number in range(4 * STEPS)]
    assert with_warmup == pytest.approx([rate * share for rate, share in zip(found, shares)])


def test_a_cyclic_rate_falls_linearly_in_every_cycle() -> None:
    """A cycle has 20 steps and the rates are doubled, so that the rate falls by 2e-6 per step from 8e-5 to 4e-5."""
    found = rates(OptimConfig(), 4, 2, average=AverageConfig("swa", cycle_epochs=2, cycle_lr=(4e-5, 2e-5)))
    assert found == pytest.approx(2 * [8e-5 - 2e-6 * (step + 1) for step in range(20)])


@pytest.mark.parametrize("scale_lr, factor", [(True, 3), (False, 1)])
def test_all_rates_grow_with_the_number_of_processes_if_configured(scale_lr: bool, factor: int) -> None:
    settings = OptimConfig(scale_lr=scale_lr, schedule="step", step_epochs=2)
    assert rates(settings, 4, 3) == pytest.approx([factor * rate for rate in rates(settings, 4)])
