"""The learning-rate schedule, freezing and the optimizer."""

from __future__ import annotations

import fnmatch
import itertools

import pytest
import torch
from torch import nn

from posenet.errors import ConfigError
from posenet.model.posenet import PoseNet
from posenet.settings import AverageConfig, OptimConfig
from posenet.training.batch_norm import batch_norm_layers
from posenet.training.freezing import ALL_BUT_HEADS, freeze, set_train_mode
from posenet.training.optimizer import make_optimizer, set_lr
from posenet.training.schedule import learning_rate, stepwise_lr
from tests.helpers.networks import tiny_network

STEPS = 10
"""Steps of an epoch."""


@pytest.fixture
def net() -> PoseNet:
    return tiny_network()


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))


@pytest.mark.parametrize(
    "epoch, step, expected",
    [
        (0, 0, 1 / 30),
        (0, 1, 2 / 30),
        (0, 9, 10 / 30),
        (1, 0, 11 / 30),
        (1, 4, 15 / 30),
        (2, 8, 29 / 30),
        (2, 9, 1),
        (3, 0, 1),
        (14, 9, 1),
        (15, 0, 0.2),
        (29, 9, 0.2),
        (30, 0, 0.04),
        (45, 0, 0.008),
        (60, 5, 0.0016),
        (75, 0, 0.00032),
        (77, 9, 0.00032),
        (78, 0, 0.00032),
        (79, 0, 0.00032),
        (90, 0, 0.000064),
        (99, 9, 0.000064),
    ],
)
def test_the_default_schedule_is_the_written_table(epoch: int, step: int, expected: float) -> None:
    assert stepwise_lr(OptimConfig(lr=2.0), 1, epoch, step, STEPS) == pytest.approx(2 * expected, rel=1e-9)


def test_without_a_restart_the_rate_never_rises_after_the_warmup() -> None:
    rates = [stepwise_lr(OptimConfig(), 1, epoch, step, STEPS) for epoch in range(3, 200) for step in range(STEPS)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))


@pytest.mark.parametrize(
    "epoch, expected",
    [
        (5, 1),
        (15, 0.2),
        (49, 0.2**3),
        (50, 0.5),
        (54, 0.5),
        (55, 0.1),
        (60, 0.02),
        (65, 0.004),
    ],
)
def test_a_restart_has_its_own_rate_and_step(epoch: int, expected: float) -> None:
    settings = OptimConfig(lr=1.0, restart_epoch=50, restart_lr=0.5, restart_step_epochs=5)
    assert stepwise_lr(settings, 1, epoch, 0, STEPS) == pytest.approx(expected)


def test_a_restart_falls_back_on_the_first_rate_and_step() -> None:
    settings = OptimConfig(lr=1.0, step_epochs=4, restart_epoch=10)
    assert [stepwise_lr(settings, 1, epoch, 0, STEPS) for epoch in (9, 10, 13, 14)] == pytest.approx([0.04, 1, 1, 0.2])


def test_without_warmup_and_steps_the_rate_is_constant() -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, step_epochs=0)
    assert {stepwise_lr(settings, 1, epoch, step, STEPS) for epoch in (0, 20, 90) for step in (0, 5)} == {0.5}


def test_a_warmup_may_be_part_of_an_epoch() -> None:
    settings = OptimConfig(lr=1.0, warmup_epochs=0.5)
    assert [stepwise_lr(settings, 1, 0, step, STEPS) for step in (0, 3, 4, 5)] == pytest.approx([0.2, 0.8, 1, 1])


@pytest.mark.parametrize("scale_lr, factor", [(True, 4), (False, 1)])
def test_the_rates_grow_with_the_number_of_processes_if_asked(scale_lr: bool, factor: int) -> None:
    config = OptimConfig(lr=0.5, warmup_epochs=0, restart_epoch=5, restart_lr=0.25, scale_lr=scale_lr)
    rates = [learning_rate(config, AverageConfig(), 4, epoch, 0, STEPS) for epoch in (0, 5)]
    assert rates == [0.5 * factor, 0.25 * factor]


def test_set_lr_reaches_every_group() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)], 1.0)
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


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
def test_exactly_the_matching_parameters_are_frozen(net: PoseNet, patterns: list[str]) -> None:
    frozen = freeze(net, patterns)
    expected = {name for name, _ in net.named_parameters() if any(fnmatch.fnmatchcase(name, p) for p in patterns)}
    assert expected and frozen == sorted(expected)
    assert {name for name, p in net.named_parameters() if not p.requires_grad} == expected


def test_all_but_heads_leaves_the_heads(net: PoseNet) -> None:
    frozen = freeze(net, [ALL_BUT_HEADS])
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    assert trained == set(net.head_parameter_names()) and trained
    assert not trained & set(frozen) and any(name.startswith("stem.") for name in frozen)
    assert all(".heads." in name for name in trained)


def test_all_but_heads_adds_up_with_patterns(net: PoseNet) -> None:
    freeze(net, [ALL_BUT_HEADS, "stacks.0.*"])
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    assert trained and all(name.startswith("stacks.1.heads.") for name in trained)


@pytest.mark.parametrize("patterns", [["stm.*"], ["stem.*", "head"], [""], ["stem"], ["all_but_heads"]])
def test_a_pattern_that_matches_nothing_is_named_and_nothing_is_frozen(net: PoseNet, patterns: list[str]) -> None:
    with pytest.raises(ConfigError, match="matches no parameter") as caught:
        freeze(net, patterns)
    assert repr(patterns[-1]) in str(caught.value) and "\n" not in str(caught.value)
    assert all(p.requires_grad for p in net.parameters())


def test_no_patterns_freeze_nothing(net: PoseNet) -> None:
    assert freeze(net, []) == [] and all(p.requires_grad for p in net.parameters())


def test_frozen_norms_keep_their_statistics_while_others_learn() -> None:
    model = small()
    freeze(model, ["1.*"])
    set_train_mode(model)
    assert model.training and not model[1].training and model[3].training
    before = [norm.running_mean.clone() for norm in batch_norm_layers(model)]
    model(torch.randn(4, 1, 8, 8))
    kept, moved = (not torch.equal(norm.running_mean, old) for norm, old in zip(batch_norm_layers(model), before))
    assert not kept and moved


def test_a_norm_that_is_frozen_in_part_still_learns() -> None:
    model = small()
    freeze(model, ["1.weight"])
    set_train_mode(model)
    assert model[1].training


def test_train_mode_comes_back_from_evaluation(net: PoseNet) -> None:
    freeze(net, [ALL_BUT_HEADS])
    net.eval()
    set_train_mode(net)
    heads = {id(m) for stack in net.stacks for m in stack.heads.modules()}
    norms = batch_norm_layers(net)
    assert norms and all(norm.training == (id(norm) in heads) for norm in norms)


def test_synchronised_norms_count_as_norms() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(small())
    assert len(batch_norm_layers(model)) == 2


@pytest.mark.parametrize(
    "config, kind, settings",
    [
        (OptimConfig(lr=0.5), torch.optim.SGD, {"lr": 0.5, "momentum": 0.9, "weight_decay": 5e-4}),
        (OptimConfig(name="adamw", lr=0.1, weight_decay=0.2), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
    ],
)
def test_the_optimizer_is_the_configured_one(config: OptimConfig, kind: type, settings: dict[str, float]) -> None:
    optimizer = make_optimizer(small(), config)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in settings} == settings
    assert len(group["params"]) == 8


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_frozen_weights_stay_bit_identical(name: str) -> None:
    model = small()
    freeze(model, ["0.*", "1.*"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = make_optimizer(model, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
    for _ in range(3):
        set_train_mode(model)
        model(torch.randn(4, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed and not [key for key in changed if key.startswith(("0.", "1."))]
    assert {"2.weight", "3.running_mean"} <= changed


def test_a_network_that_is_frozen_as_a_whole_is_refused() -> None:
    model = small()
    freeze(model, ["*"])
    with pytest.raises(ConfigError, match="train.freeze leaves nothing to train"):
        make_optimizer(model, OptimConfig())


@pytest.mark.parametrize(
    "config, plain",
    [
        (
            OptimConfig(lr=0.1),
            lambda p: torch.optim.SGD(p, 0.1, momentum=OptimConfig.momentum, weight_decay=OptimConfig.weight_decay),
        ),
        (OptimConfig(name="adamw", lr=0.1), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=OptimConfig.weight_decay)),
    ],
)
def test_the_fused_optimizer_is_the_plain_one(config, plain):
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [make_optimizer(models[0], config), plain(models[1].parameters())]
    assert optimizers[0].param_groups[0]["fused"]
    for _ in range(3):
        gradient = torch.randn(2, 3)
        for model, optimizer in zip(models, optimizers):
            model.weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(models[0].weight, models[1].weight)
