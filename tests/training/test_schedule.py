"""The learning-rate schedules: warmup, drops, the restart, cycles, and scaling by the number of processes."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from posenet.settings import AverageConfig, Config, OptimConfig, TrainConfig
from posenet.training.schedule import cosine_lr, learning_rate, stepwise_lr

STEPS_PER_EPOCH = 10


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
def test_the_default_settings_give_these_rates(epoch: int, step: int, expected: float) -> None:
    settings = OptimConfig(lr=2.0)
    assert stepwise_lr(settings, 1, epoch, step, STEPS_PER_EPOCH) == pytest.approx(2 * expected, rel=1e-9)


def test_without_a_restart_the_rate_never_rises_after_the_warmup() -> None:
    settings = OptimConfig()
    positions = itertools.product(range(3, 200), range(STEPS_PER_EPOCH))
    rates = [stepwise_lr(settings, 1, epoch, step, STEPS_PER_EPOCH) for epoch, step in positions]
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
def test_a_restart_uses_its_own_rate_and_its_own_drop_interval(epoch: int, expected: float) -> None:
    settings = OptimConfig(lr=1.0, restart_epoch=50, restart_lr=0.5, restart_step_epochs=5)
    assert stepwise_lr(settings, 1, epoch, 0, STEPS_PER_EPOCH) == pytest.approx(expected)


def test_a_restart_uses_the_first_rate_and_drop_interval_by_default() -> None:
    settings = OptimConfig(lr=1.0, step_epochs=4, restart_epoch=10)
    rates = [stepwise_lr(settings, 1, epoch, 0, STEPS_PER_EPOCH) for epoch in (9, 10, 13, 14)]
    assert rates == pytest.approx([0.04, 1, 1, 0.2])


def test_without_warmup_and_drops_the_rate_is_constant() -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, step_epochs=0)
    for epoch, step in itertools.product((0, 20, 90), (0, 5)):
        assert stepwise_lr(settings, 1, epoch, step, STEPS_PER_EPOCH) == 0.5


def test_a_warmup_may_be_part_of_an_epoch() -> None:
    settings = OptimConfig(lr=1.0, warmup_epochs=0.5)
    rates = [stepwise_lr(settings, 1, 0, step, STEPS_PER_EPOCH) for step in (0, 3, 4, 5)]
    assert rates == pytest.approx([0.2, 0.8, 1, 1])


@pytest.mark.parametrize("scale_lr, factor", [(True, 4), (False, 1)])
def test_the_rates_grow_with_the_number_of_processes_if_configured(scale_lr: bool, factor: int) -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, restart_epoch=5, restart_lr=0.25, scale_lr=scale_lr)
    rates = [learning_rate(Config(optim=settings), 4, epoch, 0, STEPS_PER_EPOCH) for epoch in (0, 5)]
    assert rates == [0.5 * factor, 0.25 * factor]


@pytest.mark.parametrize(
    "epoch, step, expected", [(0, 0, 7.5e-5), (0, 3, 6e-5), (1, 3, 4e-5), (2, 0, 7.5e-5), (99, 3, 4e-5)]
)
def test_a_cyclic_rate_falls_linearly_in_every_cycle(epoch: int, step: int, expected: float) -> None:
    """A cycle has 8 steps and the rates are doubled, so that the rate falls by 5e-6 per step from 8e-5 to 4e-5."""
    average = AverageConfig("swa", cycle_epochs=2, cycle_lr=(4e-5, 2e-5))
    rate = learning_rate(Config(optim=OptimConfig(scale_lr=True), average=average), 2, epoch, step, 4)
    assert rate == pytest.approx(expected)


def test_a_cosine_falls_from_the_full_rate_to_zero_over_the_whole_run() -> None:
    settings = OptimConfig(lr=0.5, warmup_epochs=0, schedule="cosine")
    positions = [(0, 0), (1, 0), (2, 0), (2, 5), (3, 0), (3, 9)]
    config = Config(optim=settings, train=TrainConfig(epochs=4))
    rates = [learning_rate(config, 2, epoch, step, STEPS_PER_EPOCH) for epoch, step in positions]
    assert rates == pytest.approx([1, 0.8535534, 0.5, 0.3086583, 0.1464466, 0.0015413], rel=1e-4)


def test_a_cosine_rises_linearly_during_the_warmup() -> None:
    settings = OptimConfig(lr=1.0, warmup_epochs=1, schedule="cosine")
    without_warmup = dataclasses.replace(settings, warmup_epochs=0)
    for step in range(STEPS_PER_EPOCH):
        full = cosine_lr(without_warmup, 1, 5, 0, step, STEPS_PER_EPOCH)
        assert cosine_lr(settings, 1, 5, 0, step, STEPS_PER_EPOCH) == pytest.approx(full * (step + 1) / STEPS_PER_EPOCH)


def test_a_cosine_does_not_restart() -> None:
    with pytest.raises(ValueError, match=r"optim\.restart_epoch restarts the step schedule"):
        OptimConfig(schedule="cosine", restart_epoch=3)
