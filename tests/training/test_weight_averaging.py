"""Averages of weights: their values, what is validated and saved, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.training.weight_averaging import ExponentialMovingAverage, StochasticWeightAverage, WeightAverage
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import CPU, copy_weights, tiny_trainer

SMALL = "train.batch_size=2"
EMA = ("average.kind='ema'", "average.decay=0.9", SMALL)
SWA = ("average.kind='swa'", "average.cycle_epochs=1", "average.cycle_lr=[2e-5, 1e-5]", SMALL)
BATCH_NORM = ("*.norm.*",)


def linear_layer(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def train_through(weights: list[float], layer: nn.Linear, average: WeightAverage) -> None:
    """Give the layer each of the weights, as one optimizer step and one epoch."""
    for epoch, weight in enumerate(weights, start=1):
        nn.init.constant_(layer.weight, weight)
        average.remember_step()
        average.after_step()
        average.after_epoch(epoch)


def averaged_weight(average: WeightAverage, layer: nn.Linear) -> float:
    with average.applied():
        return layer.weight.item()


def test_ema_follows_its_formula_and_the_trained_weights_return() -> None:
    layer = linear_layer(1.0)
    average = ExponentialMovingAverage(layer, decay=0.24)
    train_through([2.0, 4.0], layer, average)
    first_decay = 2 / 11  # (1 + n) / (10 + n) for n = 1
    second_decay = 0.24  # because (1 + n) / (10 + n) is 0.25 for n = 2
    first_average = first_decay * 1.0 + (1 - first_decay) * 2.0
    expected = second_decay * first_average + (1 - second_decay) * 4.0
    assert averaged_weight(average, layer) == pytest.approx(expected)
    assert layer.weight.item() == 4


def test_ema_averages_the_remembered_step_and_not_a_later_or_a_skipped_one() -> None:
    layer = linear_layer(1.0)
    average = ExponentialMovingAverage(layer, decay=0.9)
    nn.init.constant_(layer.weight, 7.0)
    average.remember_step()  # and skipped: no ``after_step``
    nn.init.constant_(layer.weight, 2.0)
    average.remember_step()
    nn.init.constant_(layer.weight, 4.0)
    average.after_step()
    assert averaged_weight(average, layer) == pytest.approx(2 / 11 * 1.0 + 9 / 11 * 2.0)
    assert average.count == 1


def test_swa_is_the_mean_over_the_ends_of_cycles() -> None:
    layer = linear_layer(1.0)
    average = StochasticWeightAverage(layer, cycle_epochs=2)
    train_through([2.0, 5.0, 7.0, 9.0, 11.0], layer, average)
    assert averaged_weight(average, layer) == pytest.approx((5 + 9) / 2)


def test_before_the_end_of_the_first_cycle_swa_equals_the_trained_weights() -> None:
    layer = linear_layer(1.0)
    average = StochasticWeightAverage(layer, cycle_epochs=2)
    train_through([2.0], layer, average)
    assert averaged_weight(average, layer) == 2


def test_an_epoch_that_is_finished_twice_enters_swa_once() -> None:
    layer = linear_layer(1.0)
    average = StochasticWeightAverage(layer, cycle_epochs=1)
    train_through([2.0, 6.0], layer, average)
    average.after_epoch(2)
    assert average.count == 2
    assert averaged_weight(average, layer) == 4


def test_a_run_with_swa_resumes_bit_for_bit(stores: dict[str, Path], tmp_path: Path) -> None:
    def train(name: str, steps: int, resume: Path | None = None) -> dict[str, Any]:
        folder = tmp_path / name
        with tiny_trainer(Runtime(CPU), stores, folder, *SWA, frozen=BATCH_NORM, steps=steps, resume=resume) as trainer:
            trainer.run()
        return read_checkpoint(folder / "last.pth")

    uninterrupted = train("uninterrupted", 8)
    train("interrupted", uninterrupted["steps_per_epoch"] + 1)
    resumed = train("interrupted", 8, resume=tmp_path / "interrupted" / "last.pth")
    assert uninterrupted["average"]["count"] > 0
    for key in ("model", "average"):
        assert find_differences(resumed[key], uninterrupted[key]) == []
    trained = uninterrupted["average"]["trained"]
    assert any(not torch.equal(uninterrupted["model"][name], trained[name]) for name in trained)


def test_the_average_is_validated_saved_and_loaded(stores: dict[str, Path], tmp_path: Path) -> None:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *EMA, "train.epochs=1") as trainer:
        validated = []
        trainer.validate = lambda: validated.append(copy_weights(trainer))
        trainer.run()
        trained = copy_weights(trainer)
        path = trainer.folder.last
    saved = read_checkpoint(path)["model"]
    network, _ = load_model(path)
    assert find_differences(validated, [dict(saved)]) == []
    assert find_differences(network.state_dict(), saved) == []
    assert find_differences(trained, saved) != []


@pytest.mark.parametrize("configured", [(SMALL,), SWA[1:]], ids=["constant", "cyclic"])
def test_a_run_that_turns_averaging_off_continues_from_the_trained_weights(
    stores: dict[str, Path], tmp_path: Path, configured: tuple[str, ...]
) -> None:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *EMA, steps=3) as trainer:
        trainer.run()
        trained = copy_weights(trainer)
        last = trainer.folder.last
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "continued", *configured, resume=last) as trainer:
        assert find_differences(copy_weights(trainer), trained) == []


def test_swa_of_trained_batch_norm_layers_is_refused(stores: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--freeze"):
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SWA):
            pass
