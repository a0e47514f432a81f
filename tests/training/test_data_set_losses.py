"""The loss of every data set of a run that trains on several."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from posenet.devices.runtime import Runtime
from posenet.training.data_set_losses import DataSetLosses, format_losses
from tests.helpers.process_groups import run_in_processes
from tests.helpers.tiny_training import CPU


def add(losses: DataSetLosses, values: list[float], sets: list[int]) -> None:
    losses.add(torch.tensor(values, requires_grad=True), torch.tensor(sets, dtype=torch.int16))


def test_losses_are_averaged_for_every_set_since_the_last_reading() -> None:
    losses = DataSetLosses(["a", "b"], Runtime(CPU))
    add(losses, [1.0, 2.0, 6.0], [0, 1, 1])
    add(losses, [3.0], [0])
    assert losses.read() == {"a": {"samples": 2, "loss": 2.0}, "b": {"samples": 2, "loss": 4.0}}
    add(losses, [5.0], [1])
    assert losses.read() == {"a": {"samples": 0, "loss": None}, "b": {"samples": 1, "loss": 5.0}}


def test_an_epoch_adds_up_its_readings() -> None:
    losses = DataSetLosses(["a"], Runtime(CPU))
    for value in (1.0, 2.0, 6.0):
        add(losses, [value], [0])
        losses.read()
    assert losses.read_epoch() == {"a": {"samples": 3, "loss": 3.0}}
    assert losses.read_epoch() == {"a": {"samples": 0, "loss": None}}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_left_out(bad: float) -> None:
    losses = DataSetLosses(["a"], Runtime(CPU))
    add(losses, [1.0, bad, 3.0], [0, 0, 0])
    assert losses.read() == {"a": {"samples": 2, "loss": 2.0}}


def test_losses_are_written_in_one_line() -> None:
    losses = DataSetLosses(["a", "b"], Runtime(CPU))
    add(losses, [1.5], [0])
    assert format_losses(losses.read()) == "a 1.5000 (1 samples), b - (0 samples)"


def test_all_processes_count(tmp_path: Path) -> None:
    def run(runtime: Runtime) -> dict:
        losses = DataSetLosses(["a", "b"], runtime)
        add(losses, [1.0 + 2 * runtime.rank], [0])
        return losses.read()

    for result in run_in_processes(2, tmp_path / "results", run):
        assert result == {"a": {"samples": 2, "loss": 2.0}, "b": {"samples": 0, "loss": None}}
