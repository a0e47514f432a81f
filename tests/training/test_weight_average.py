"""Averages of the weights: EMA and SWA."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posenet.checkpoints.weights import load_model
from posenet.settings import AverageConfig
from posenet.training.weight_average import WeightAverage
from tests.helpers.process_runs import assert_same_run, find_differences
from tests.helpers.tiny_training import Stores, WatchedRuntime, last, train_tiny, weights

EMA = ("average.kind=ema", "average.decay=0.9")
SWA = ("average.kind=swa", "average.cycle_epochs=1", "average.cycle_lr=[2e-5, 1e-5]", "train.freeze=['*.norm.*']")


def averaged_weight(settings: AverageConfig, values: list[float], repeat_last_epoch: bool = False) -> float:
    """The averaged weight of a layer that had each of the values at the end of one step and one epoch, from 1 on."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    average = WeightAverage(layer, settings)
    for epoch, value in enumerate(values, start=1):
        nn.init.constant_(layer.weight, value)
        average.after_step()
        average.after_epoch(epoch)
    if repeat_last_epoch:  # its validation was interrupted
        average.after_epoch(len(values))
    with average.applied():
        averaged = layer.weight.item()
    assert layer.weight.item() == values[-1], "the trained weights return"
    return averaged


def test_a_restored_average_does_not_count_its_last_epoch_again() -> None:
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer, AverageConfig("swa", cycle_epochs=1, cycle_lr=(2e-5, 1e-5)))
    average.restore({"weight": torch.tensor([[5.0]])}, count=1, epochs=3)
    average.after_epoch(3)
    assert (average.count, average.values["weight"].item()) == (1, 5)


def test_ema_follows_its_formula() -> None:
    first_decay = 2 / 11  # (1 + n) / (10 + n) for n = 1
    second_decay = 0.24  # because (1 + n) / (10 + n) is 0.25 for n = 2
    first_average = first_decay * 1.0 + (1 - first_decay) * 2.0
    expected = second_decay * first_average + (1 - second_decay) * 4.0
    assert averaged_weight(AverageConfig("ema", decay=0.24), [2.0, 4.0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    "cycle, values, repeat, expected",
    [
        (2, [2.0, 5.0, 7.0, 9.0, 11.0], False, 7.0),  # 5 and 9 are at the ends of cycles
        (2, [2.0], False, 2.0),  # before the end of the first cycle: the trained weight
        (1, [2.0, 6.0], True, 4.0),
    ],
)
def test_swa_is_the_mean_over_the_ends_of_cycles(
    cycle: int, values: list[float], repeat: bool, expected: float
) -> None:
    assert averaged_weight(AverageConfig("swa", cycle_epochs=cycle), values, repeat) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [EMA, SWA], ids=["ema", "swa"])
def test_the_average_is_validated_saved_and_loaded_and_resumes_to_the_bit(
    stores: Stores, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    validated: list[dict[str, torch.Tensor]] = []

    def record(module: nn.Module, *_: Any) -> None:
        if not module.training:
            validated.append({name: tensor.clone() for name, tensor in module.network.state_dict().items()})

    runtime = WatchedRuntime(lambda module: module.register_forward_hook(record))
    train_tiny(stores, tmp_path / "whole", *kind, runtime=runtime)
    saved = weights(tmp_path / "whole")
    assert find_differences(validated[-1], saved) == []
    assert find_differences(load_model(tmp_path / "whole" / "last.pth")[0].state_dict(), saved) == []
    trained = last(tmp_path / "whole")["average"]["trained"]
    assert any(not torch.equal(saved[name], tensor) for name, tensor in trained.items())
    if kind == SWA:  # test_resume.py interrupts runs with an EMA
        for steps in (3, 0):  # before the end of the first cycle, and to the end
            train_tiny(stores, tmp_path / "parts", *kind, resume=True, max_steps=steps)
        assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_run_that_turns_averaging_off_continues_from_the_trained_weights(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path / "run", *EMA, max_steps=3)
    state = last(tmp_path / "run")
    assert find_differences(state["model"], weights(tmp_path / "run") | state["average"]["trained"])
    train_tiny(stores, tmp_path / "run", "average.kind=off", resume=True, max_steps=4)
    train_tiny(stores, tmp_path / "never", max_steps=4)
    assert find_differences(weights(tmp_path / "run"), weights(tmp_path / "never")) == []
