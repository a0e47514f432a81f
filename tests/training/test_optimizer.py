"""The optimizer: its settings, its learning rate, and the frozen parameters that it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posenet.errors import ConfigError
from posenet.settings import OptimConfig
from posenet.training.conditional_update import step_unless
from posenet.training.freezing import freeze, set_train_mode
from posenet.training.optimizer import can_skip_on_device, make_optimizer, restore_optimizer, set_lr
from tests.helpers.networks import conv_and_batch_norm


def test_set_lr_sets_the_rate_of_every_group() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)], 1.0)
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


@pytest.mark.parametrize(
    "settings, kind, expected",
    [
        (OptimConfig(lr=0.5), torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "weight_decay": 5e-4}),
        (OptimConfig(name="adamw", lr=0.1, weight_decay=0.2), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
    ],
)
def test_the_optimizer_has_the_configured_kind_and_settings(
    settings: OptimConfig, kind: type, expected: dict[str, float]
) -> None:
    model = conv_and_batch_norm()
    optimizer = make_optimizer(model, settings)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in expected} == expected
    assert len(group["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_frozen_parameters_and_statistics_stay_bit_identical(name: str) -> None:
    model = conv_and_batch_norm()
    freeze(model, ["0.*", "1.*"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = make_optimizer(model, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
    for _ in range(3):
        set_train_mode(model)
        model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert {"2.weight", "3.running_mean"} <= changed
    assert not any(key.startswith(("0.", "1.")) for key in changed)


def test_a_completely_frozen_network_is_refused() -> None:
    model = conv_and_batch_norm()
    freeze(model, ["*"])
    with pytest.raises(ConfigError, match="train.freeze leaves nothing to train"):
        make_optimizer(model, OptimConfig())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_fused_optimizer_computes_the_same_weights_as_the_plain_one(name: str) -> None:
    fused_model = nn.Linear(3, 2)
    plain_model = nn.Linear(3, 2)
    plain_model.load_state_dict(fused_model.state_dict())
    settings = OptimConfig(name=name, lr=0.1)
    fused = make_optimizer(fused_model, settings)
    assert fused.param_groups[0]["fused"]
    parameters = plain_model.parameters()
    if name == "sgd":
        plain = torch.optim.SGD(
            parameters, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=False
        )
    else:
        plain = torch.optim.AdamW(parameters, settings.lr, weight_decay=settings.weight_decay, fused=False)
    for _ in range(3):
        gradient = torch.randn(2, 3)
        fused_model.weight.grad = gradient.clone()
        plain_model.weight.grad = gradient.clone()
        fused.step()
        plain.step()
    torch.testing.assert_close(fused_model.weight, plain_model.weight)


def test_momentum_starts_at_zero_also_after_an_older_checkpoint_without_it() -> None:
    model = conv_and_batch_norm()
    optimizer = make_optimizer(model, OptimConfig())
    state = optimizer.state_dict()
    restore_optimizer(optimizer, {**state, "state": {}})
    for parameter in model.parameters():
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert torch.equal(momentum, torch.zeros_like(parameter))


def test_an_optimizer_that_cannot_skip_on_the_device_reads_the_decision() -> None:
    """Such as one without fused kernels."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.5, momentum=0.9)
    assert not can_skip_on_device(optimizer)
    for skip, expected in ((True, 1.0), (False, 0.5)):
        weight.grad = torch.ones(2)
        step_unless(torch.tensor(skip), optimizer)
        assert weight.tolist() == [expected] * 2
