"""Averages of weights: their values, what is validated and saved, and resuming."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.settings import AverageConfig, OptimConfig
from posenet.training.schedule import learning_rate
from posenet.training.weight_averaging import ExponentialMovingAverage, StochasticWeightAverage, WeightAverage
from tests.helpers.tiny_training import CPU, tiny_trainer

EMA = ("average.kind='ema'", "average.decay=0.9", "train.batch_size=2")
SWA = ("average.kind='swa'", "average.cycle_epochs=1", "average.cycle_lr=[2e-5, 1e-5]", "train.batch_size=2")
NORMS = ("*.norm.*",)


def linear(value: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def follow(average: WeightAverage, layer: nn.Linear, values: list[float]) -> None:
    for epoch, value in enumerate(values, 1):
        nn.init.constant_(layer.weight, value)
        average.after_step()
        average.after_epoch(epoch)


def averaged(average: WeightAverage, layer: nn.Linear) -> float:
    with average.applied():
        return layer.weight.item()


def test_ema_follows_its_formula_and_gives_the_weights_back() -> None:
    layer = linear(1.0)
    average = ExponentialMovingAverage(layer, 0.25)
    follow(average, layer, [2.0, 4.0])
    first = 1 * 2 / 11 + 2 * 9 / 11  # n = 1: decay 2/11
    assert averaged(average, layer) == pytest.approx(first * 0.25 + 4 * 0.75)  # n = 2: 3/12, the ceiling
    assert layer.weight.item() == 4


def test_swa_is_the_mean_over_ends_of_cycles_and_nothing_before_the_first() -> None:
    layer = linear(1.0)
    average = StochasticWeightAverage(layer, cycle_epochs=2)
    follow(average, layer, [2.0])
    assert averaged(average, layer) == 2
    follow(average, layer, [5.0, 7.0, 9.0, 11.0])
    assert averaged(average, layer) == pytest.approx((7 + 11) / 2)


def test_the_cyclic_rate_falls_linearly_and_starts_again() -> None:
    average = AverageConfig("swa", cycle_epochs=2, cycle_lr=(4e-5, 2e-5))
    optim = OptimConfig(scale_lr=True)
    table = [(0, 0, 7.5e-5), (0, 3, 6e-5), (1, 3, 4e-5), (2, 0, 7.5e-5), (99, 3, 4e-5)]
    for epoch, step, lr in table:
        assert learning_rate(optim, average, 2, epoch, step, 4) == pytest.approx(lr)


@pytest.mark.parametrize("kind, frozen", [(EMA, ()), (SWA, NORMS)])
def test_a_run_with_averages_resumes_bit_for_bit(stores, tmp_path, kind, frozen):
    def go(name, steps, resume=None):
        with tiny_trainer(
            Runtime(CPU), stores, tmp_path / name, *kind, frozen=frozen, steps=steps, resume=resume
        ) as trainer:
            trainer.run()
            return read_checkpoint(tmp_path / name / "last.pth")

    whole = go("whole", 8)
    length = whole["steps_per_epoch"]
    go("cut", length + 1)
    resumed = go("cut", 8, tmp_path / "cut" / "last.pth")
    assert whole["average"]["count"] == resumed["average"]["count"] > 0
    for a, b in ((whole["model"], resumed["model"]), (whole["average"]["trained"], resumed["average"]["trained"])):
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
    trained = whole["average"]["trained"]
    assert any(not torch.equal(whole["model"][n], trained[n]) for n in trained)


def test_what_is_validated_is_what_others_load(stores, tmp_path):
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *EMA, "train.epochs=1") as trainer:
        seen = []
        trainer.validate = lambda: seen.append({n: t.clone() for n, t in trainer.model.network.state_dict().items()})
        trainer.run()
        trained = trainer.model.network.state_dict()
        state = read_checkpoint(trainer.folder.last)
    assert all(torch.equal(seen[0][n], state["model"][n]) for n in trained)
    assert any(not torch.equal(trained[n], seen[0][n]) for n in trained)
    model, _ = load_model(tmp_path / "run" / "last.pth")
    assert all(torch.equal(t, state["model"][n]) for n, t in model.state_dict().items())


def test_a_run_goes_on_from_its_trained_weights_without_the_average(stores, tmp_path):
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *EMA, steps=3) as trainer:
        trainer.run()
        trained = {n: t.clone() for n, t in trainer.model.network.state_dict().items()}
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "on", *SWA[3:], resume=tmp_path / "run" / "last.pth") as trainer:
        assert all(torch.equal(t, trained[n]) for n, t in trainer.model.network.state_dict().items())


def test_swa_wants_frozen_statistics_and_a_cycle(stores, tmp_path):
    with pytest.raises(ConfigError, match="--freeze"), tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SWA):
        pass
    with pytest.raises(ValueError, match="average.cycle_epochs"):
        AverageConfig("swa")
