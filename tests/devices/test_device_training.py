"""Training steps on every device: precisions, settings, bad batches, and the results of the CPU as the reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from tests.helpers.device_training import (
    FROZEN_NORM,
    assert_same_training,
    build_small_step,
    host_copy,
    largest_difference,
    small_batch,
    train_small_network,
)
from tests.helpers.tiny_training import CPU, train_tiny_network

FLOAT32_TOLERANCE = 1e-4
REDUCED_TOLERANCE = 0.02
AMPS = ["off", "bf16", "fp16"]
FIXED_SCALE = "train.loss_scale=16"
"""A loss scale that fp16 needs not adapt, so that no step is skipped."""


@pytest.mark.parametrize(
    "overrides",
    [(), ("train.channels_last=true",), ("optim.max_grad_norm=1",)],
    ids=["plain", "channels_last", "clipped"],
)
def test_three_steps_equal_those_of_the_cpu(accelerator: torch.device, overrides: tuple[str, ...]) -> None:
    reference = train_small_network(CPU, FROZEN_NORM, *overrides)
    assert_same_training(train_small_network(accelerator, FROZEN_NORM, *overrides), reference, FLOAT32_TOLERANCE)


def test_steps_with_batch_norm_stay_near_those_of_the_cpu(accelerator: torch.device) -> None:
    trained = train_small_network(accelerator)
    reference = train_small_network(CPU)
    assert trained.losses[0] == pytest.approx(reference.losses[0], rel=FLOAT32_TOLERANCE)
    assert trained.losses == pytest.approx(reference.losses, rel=REDUCED_TOLERANCE)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_reduced_precision_trains_like_float32(device: torch.device, amp: str) -> None:
    reference = train_small_network(CPU, FROZEN_NORM)
    trained = train_small_network(device, FROZEN_NORM, f"train.amp='{amp}'", FIXED_SCALE)
    assert trained.losses == pytest.approx(reference.losses, rel=REDUCED_TOLERANCE)
    assert trained.losses != reference.losses  # the precision was used


@pytest.mark.parametrize("amp", AMPS)
def test_a_batch_with_a_bad_loss_changes_nothing(device: torch.device, amp: str) -> None:
    train_step, model = build_small_step(device, f"train.amp='{amp}'", FIXED_SCALE)
    batch = small_batch(train_step)
    train_step([batch])
    before = host_copy(model.network.state_dict())
    momentum = copy_momentum(train_step.optimizer)
    make_next_loss_nan(model)
    train_step([small_batch(train_step, seed=1)])
    assert largest_difference(model.network.state_dict(), before) == (0, "")
    assert largest_difference(copy_momentum(train_step.optimizer), momentum) == (0, "")
    train_step([batch])
    assert largest_difference(model.network.state_dict(), before)[0] > 0


@pytest.mark.parametrize("amp", AMPS)
def test_a_run_with_average_accumulation_and_clipping_equals_that_of_the_cpu(
    stores: dict[str, Path], tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    overrides = ("average.kind='ema'", "optim.accumulate=2", "optim.max_grad_norm=5", "train.batch_size=2", FIXED_SCALE)
    options: dict[str, Any] = {"steps": 4, "frozen": ("*.norm.*",)}
    losses, _ = train_tiny_network(Runtime(CPU), stores, tmp_path / "cpu", *overrides, "train.amp='off'", **options)
    device_losses, _ = train_tiny_network(
        Runtime(accelerator), stores, tmp_path / "device", *overrides, f"train.amp='{amp}'", **options
    )
    tolerance = FLOAT32_TOLERANCE if amp == "off" else REDUCED_TOLERANCE
    assert device_losses == pytest.approx(losses, rel=tolerance)
    average, expected = (read_checkpoint(tmp_path / name / "last.pth")["model"] for name in ("device", "cpu"))
    difference, name = largest_difference(average, expected)
    assert difference <= tolerance, f"the average of {name} differs by {difference:.1e}"


def make_next_loss_nan(model: Any) -> None:
    """Make the losses of the model's next forward pass NaN."""
    forward = model.forward

    def forward_with_nan(*batch: Tensor | None) -> Tensor:
        model.forward = forward
        losses: Tensor = forward(*batch) * math.nan
        return losses

    model.forward = forward_with_nan


def copy_momentum(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A copy of the momentum of every parameter, by its number."""
    states = optimizer.state_dict()["state"]
    assert states, "the optimizer has no momentum yet"
    return host_copy({str(number): state["momentum_buffer"] for number, state in states.items()})
