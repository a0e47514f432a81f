"""Resuming a run: on the same device to the bit, and on another device within rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from tests.helpers.device_training import TrainedSteps, assert_same_training, host_copy, largest_difference
from tests.helpers.tiny_training import CPU, train_tiny_network

Stores = dict[str, Path]

SETTINGS = ("train.batch_size=2", "train.amp='off'", "train.channels_last=false", "average.kind='ema'")
TOLERANCE = 1e-4


def run(stores: Stores, folder: Path, device: torch.device, *overrides: str, **options: object) -> TrainedSteps:
    """Train a tiny network in ``folder`` until ``steps`` and stop; ``resume`` is a checkpoint to continue from."""
    losses, weights = train_tiny_network(Runtime(device), stores, folder, *SETTINGS, *overrides, **options)
    return TrainedSteps(losses, host_copy(weights))


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Makes PyTorch use deterministic algorithms, or raise an error that names the operator that has none."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_four_and_four_steps_are_eight_steps_to_the_bit(
    stores: Stores, tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    override = f"train.amp='{amp}'"
    whole = run(stores, tmp_path / "whole", accelerator, override, steps=8)
    first = run(stores, tmp_path / "parts", accelerator, override, steps=4)
    rest = run(stores, tmp_path / "parts", accelerator, override, steps=8, resume=tmp_path / "parts" / "last.pth")
    assert first.losses + rest.losses == whole.losses
    assert largest_difference(rest.weights, whole.weights) == (0, "")
    parts, expected = (read_checkpoint(tmp_path / name / "last.pth") for name in ("parts", "whole"))
    assert largest_difference(parts["model"], expected["model"]) == (0, "")  # the average


def test_a_run_moves_from_the_device_to_the_cpu_and_back(
    stores: Stores, tmp_path: Path, accelerator: torch.device
) -> None:
    frozen = ("*.norm.*",)
    whole = run(stores, tmp_path / "cpu", CPU, steps=6, frozen=frozen)
    losses = []
    checkpoint = None
    for steps, device in ((2, accelerator), (4, CPU), (6, accelerator)):
        part = run(stores, tmp_path / "moving", device, steps=steps, frozen=frozen, resume=checkpoint)
        checkpoint = tmp_path / "moving" / "last.pth"
        losses += part.losses
    assert_same_training(TrainedSteps(losses, part.weights), whole, TOLERANCE)
    state = read_checkpoint(checkpoint)
    assert {tensor.device for tensor in state["model"].values()} == {CPU}
    expected = read_checkpoint(tmp_path / "cpu" / "last.pth")
    assert largest_difference(state["model"], expected["model"])[0] <= TOLERANCE
    momentum, expected_momentum = (
        {str(key): value["momentum_buffer"] for key, value in one["optimizer"]["state"].items()}
        for one in (state, expected)
    )
    assert momentum
    assert largest_difference(momentum, expected_momentum)[0] <= 100 * TOLERANCE
