"""Resuming a run: on the same device to the bit, and on another device within rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.device_training import FROZEN_NORM, TrainedSteps, assert_same_training, largest_difference
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import CPU, Recorder, last, train_tiny

Stores = dict[str, Path]

SETTINGS = ("train.channels_last=false", "average.kind=ema")
TOLERANCE = 1e-4


def run(stores: Stores, folder: Path, device: torch.device, *overrides: str, **options: Any) -> TrainedSteps:
    """Train a tiny network in ``folder``; ``options`` are arguments of ``posenet.train``."""
    recorder = Recorder()
    train_tiny(stores, folder, *SETTINGS, f"train.device={device}", *overrides, callbacks=[recorder], **options)
    return TrainedSteps(recorder.losses, last(folder)["model"])


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_four_and_four_steps_are_eight_steps_to_the_bit(
    stores: Stores, tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    settings = (f"train.amp={amp}", "train.deterministic=true")
    whole = run(stores, tmp_path / "whole", accelerator, *settings, max_steps=8)
    first = run(stores, tmp_path / "parts", accelerator, *settings, max_steps=4)
    rest = run(stores, tmp_path / "parts", accelerator, *settings, max_steps=8, resume=True)
    assert first.losses + rest.losses == whole.losses
    states = [last(tmp_path / name) for name in ("parts", "whole")]
    for state in states:
        assert {tensor.device for tensor in state["model"].values()} == {CPU}
        del state["config"]["checkpoint"]["path"]
    assert find_differences(*states) == []


def test_a_run_moves_from_the_device_to_the_cpu_and_back(
    stores: Stores, tmp_path: Path, accelerator: torch.device
) -> None:
    settings = [FROZEN_NORM, "train.amp=off"]
    whole = run(stores, tmp_path / "cpu", CPU, *settings, max_steps=6)
    losses = []
    for steps, device in ((2, accelerator), (4, CPU), (6, accelerator)):
        part = run(stores, tmp_path / "moving", device, *settings, max_steps=steps, resume=steps > 2)
        losses += part.losses
    assert_same_training(TrainedSteps(losses, part.weights), whole, TOLERANCE)
    momentum, expected_momentum = (
        {str(key): value["momentum_buffer"] for key, value in last(tmp_path / name)["optimizer"]["state"].items()}
        for name in ("moving", "cpu")
    )
    assert momentum
    assert largest_difference(momentum, expected_momentum)[0] <= 100 * TOLERANCE
