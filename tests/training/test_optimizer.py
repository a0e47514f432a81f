"""The optimizer, and the learning rate of every step."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenet.settings import AverageConfig, Config, OptimConfig, TrainConfig
from posenet.training.optimizer import learning_rate, make_optimizer, restore_optimizer, stepwise_lr
from tests.helpers.networks import conv_and_batch_norm

STEPS = 10
"""Steps of an epoch."""


def test_the_optimizer_has_the_configured_kind_and_settings() -> None:
    model = conv_and_batch_norm()
    for settings, kind, expected in (
        (OptimConfig(lr=0.5), torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "weight_decay": 5e-4}),
        (OptimConfig("adamw", weight_decay=0.2), torch.optim.AdamW, {"betas": (0.9, 0.999), "weight_decay": 0.2}),
        (OptimConfig("adamw", lr=0.1, betas=(0.8, 0.9)), torch.optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9)}),
    ):
        optimizer = make_optimizer(model, settings)
        assert type(optimizer) is kind
        (group,) = optimizer.param_groups
        assert {name: group[name] for name in expected} == expected
        assert len(group["params"]) == len(list(model.parameters()))
        assert group["fused"]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_batch_norm_and_biases_are_decayed_unless_they_are_left_out(name: str) -> None:
    """With a gradient of 0, only the decay changes a parameter, by the factor 1 - lr * weight_decay."""
    for decay_all in (True, False):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
        optimizer = make_optimizer(model, OptimConfig(name, 0.5, weight_decay=0.2, decay_norms_and_biases=decay_all))
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        factors = {key: round(parameter.mean().item(), 4) for key, parameter in model.named_parameters()}
        vectors = dict.fromkeys(("0.bias", "1.weight", "1.bias", "2.bias"), 0.9 if decay_all else 1)
        assert factors == {"0.weight": 0.9, "2.weight": 0.9} | vectors


def test_a_state_of_other_groups_of_parameters_is_refused() -> None:
    model = conv_and_batch_norm()
    optimizers = [make_optimizer(model, OptimConfig(decay_norms_and_biases=decay_all)) for decay_all in (True, False)]
    for optimizer, other in itertools.permutations(optimizers):
        with pytest.raises(ValueError, match="other groups of parameters"):
            restore_optimizer(optimizer, other.state_dict())
        restore_optimizer(optimizer, optimizer.state_dict())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "before, after",
    [(torch.contiguous_format, torch.channels_last), (torch.channels_last, torch.contiguous_format)],
    ids=["to", "from"],
)
def test_a_restored_state_belongs_to_the_same_weights_in_another_memory_format(
    name: str, before: torch.memory_format, after: torch.memory_format
) -> None:
    settings = OptimConfig(name, lr=0.1)
    gradients = torch.randn(2, 4, 3, 3, 3, generator=torch.Generator().manual_seed(1))

    def step(conv: torch.nn.Conv2d, optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
        conv.weight.grad = torch.empty_like(conv.weight).copy_(gradient)
        optimizer.step()

    uninterrupted = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=before)
    optimizer = make_optimizer(uninterrupted, settings)
    step(uninterrupted, optimizer, gradients[0])
    resumed = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=after)
    resumed.load_state_dict(uninterrupted.state_dict())
    resumed_optimizer = make_optimizer(resumed, settings)
    restore_optimizer(resumed_optimizer, copy.deepcopy(optimizer.state_dict()))
    step(uninterrupted, optimizer, gradients[1])
    step(resumed, resumed_optimizer, gradients[1])
    torch.testing.assert_close(resumed.weight, uninterrupted.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_with_gaps_or_without_finite_numbers_is_refused(name: str) -> None:
    network = torch.nn.Linear(2, 3)
    optimizer = make_optimizer(network, OptimConfig(name))
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    not_finite = {key: torch.full_like(value, math.nan) for key, value in state["state"][1].items()}
    for value in ({}, not_finite):
        damaged = copy.deepcopy(state)
        damaged["state"][1] = value
        with pytest.raises(ValueError, match="the optimizer's state"):
            restore_optimizer(make_optimizer(network, OptimConfig(name)), damaged)


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
def test_the_default_settings_give_these_rates(epoch: int, step: int, expected: float) -> None:
    assert stepwise_lr(OptimConfig(lr=2.0), 1, epoch, step, STEPS) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize(
    "restart, expected",
    [
        ({"restart_lr": 0.5, "restart_step_epochs": 5}, {15: 0.2, 49: 0.2**3, 50: 0.5, 54: 0.5, 55: 0.1, 65: 0.004}),
        ({}, {45: 0.2**3, 50: 1, 64: 1, 65: 0.2}),  # by default the first rate and interval
    ],
)
def test_a_restart_uses_its_own_rate_and_interval(restart: dict[str, float], expected: dict[int, float]) -> None:
    settings = OptimConfig(lr=1.0, restart_epoch=50, **restart)
    found = {epoch: stepwise_lr(settings, 1, epoch, 0, STEPS) for epoch in expected}
    assert found == pytest.approx(expected)


def test_a_cosine_falls_from_the_full_rate_to_zero_over_the_whole_run() -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, schedule="cosine")
    found = rates(settings, 4, world_size=2)
    expected = {0: 1, 10: 0.8535534, 20: 0.5, 25: 0.3086583, 30: 0.1464466, 39: 0.0015413}
    assert {number: found[number] for number in expected} == pytest.approx(expected, rel=1e-4)


def test_a_cyclic_rate_falls_linearly_in_every_cycle() -> None:
    """A cycle has 20 steps and the rates are doubled, so that the rate falls by 2e-6 per step from 8e-5 to 4e-5."""
    found = rates(OptimConfig(), 4, 2, average=AverageConfig("swa", cycle_epochs=2, cycle_lr=(4e-5, 2e-5)))
    assert found == pytest.approx(2 * [8e-5 - 2e-6 * (step + 1) for step in range(20)])


@given(
    settings=st.builds(
        OptimConfig,
        lr=st.floats(1e-6, 1),
        warmup_epochs=st.floats(0, 5),
        step_epochs=st.integers(0, 20),
        step_factor=st.floats(0.01, 1),
        schedule=st.sampled_from(["step", "cosine"]),
    ),
    epochs=st.integers(1, 30),
)
def test_rates_rise_during_the_warmup_and_never_after_it(settings: OptimConfig, epochs: int) -> None:
    found = rates(settings, epochs)
    without_warmup = rates(dataclasses.replace(settings, warmup_epochs=0), epochs)
    warmup_steps = min(math.ceil(settings.warmup_epochs * STEPS), len(found))
    for number, (rate, full) in enumerate(zip(found, without_warmup)):
        share = min(1.0, (number + 1) / (settings.warmup_epochs * STEPS)) if settings.warmup_epochs else 1
        assert rate == pytest.approx(full * share)
    assert all(0 < rate <= settings.lr for rate in found)
    assert without_warmup[0] == pytest.approx(settings.lr)
    for rates_that_fall in (without_warmup, found[warmup_steps:]):
        assert all(later <= earlier for earlier, later in itertools.pairwise(rates_that_fall))


@given(world_size=st.integers(1, 64), scale_lr=st.booleans(), restart=st.sampled_from([0, 2]))
def test_all_rates_grow_with_the_number_of_processes_if_configured(
    world_size: int, scale_lr: bool, restart: int
) -> None:
    settings = OptimConfig(scale_lr=scale_lr, restart_epoch=restart, restart_lr=0.25)
    factor = world_size if scale_lr else 1
    assert rates(settings, 4, world_size) == pytest.approx([factor * rate for rate in rates(settings, 4)])
