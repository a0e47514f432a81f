"""The focal L2 loss: measured values, its formula, masks, weights and gradients; the means of losses in the log."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenet.errors import ConfigError
from posenet.settings import LossConfig
from posenet.skeleton import COCO
from posenet.training.loss import POSITIVE_THRESHOLD, FocalL2Loss
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import Stores, train_tiny

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "loss.json").read_text())
NUM_SCALES = 5

Predictions = list[list[Tensor]]
"""One list per stack of (N, C, H, W) maps per scale, fine to coarse."""


def formula(loss: FocalL2Loss, predictions: Predictions, target: Tensor, mask: Tensor) -> Tensor:
    """The loss as the paper writes it, map by map."""
    stack_weights = [1 / len(predictions)] * len(predictions) if loss.stack_weights is None else loss.stack_weights
    losses = torch.zeros(len(target))
    for stack_weight, scales in zip(stack_weights, predictions):
        for scale, (scale_weight, s) in enumerate(zip(loss.scale_weights, scales)):
            t = F.avg_pool2d(target, 1 << scale)
            shrunk = F.interpolate(mask, size=t.shape[2:], mode="bilinear", align_corners=False)
            weight = torch.where(shrunk < 0.5, 0, shrunk) * loss.channel_weights
            q = torch.where(t >= POSITIVE_THRESHOLD, s, 1 - s)
            cells = (s - t) ** 2 * (1 - q).abs() ** loss.gamma * weight
            losses = losses + stack_weight * scale_weight * cells.sum((1, 2, 3))
    return losses


def make_loss(**changes: Any) -> FocalL2Loss:
    """The loss with the default settings, except for ``changes``."""
    return FocalL2Loss(LossConfig(**changes), COCO)


def measured_input(case: dict[str, Any]) -> tuple[Predictions, Tensor, Tensor]:
    """The random predictions, target and mask with which a case was measured; the order of the numbers matters."""
    num_images, size = case["batch"], case["size"]
    rng = np.random.default_rng(case["seed"])

    def random_maps(size: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((num_images, 50, size, size)).astype(np.float32) * 0.3 + 0.1)

    predictions = [[random_maps(size >> scale) for scale in range(NUM_SCALES)] for _ in range(case["nstack"])]
    rng = np.random.default_rng(case["seed"] + 1000)
    target = np.clip(rng.standard_normal((num_images, 50, size, size)), 0, 1).astype(np.float32)
    target = target * (rng.random(target.shape) > 0.7)
    mask = (rng.random((num_images, 1, size, size)) > 0.2).astype(np.float32)
    return predictions, torch.from_numpy(target), torch.from_numpy(mask)


def random_input(stacks: int = 1, num_images: int = 2) -> tuple[Predictions, Tensor, Tensor]:
    """Random predictions and target of 16 x 16 cells, and a mask that supervises all of them."""
    predictions, target, _ = measured_input({"seed": 0, "batch": num_images, "size": 16, "nstack": stacks})
    return predictions, target, torch.ones(num_images, 1, 16, 16)


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"stacks{case['nstack']}-gamma{case['gamma']}")
def test_losses_equal_the_measured_ones(case: dict[str, Any]) -> None:
    losses = make_loss(gamma=case["gamma"])(*measured_input(case))
    assert losses.shape == (case["batch"],) and losses.dtype == torch.float32
    assert losses.mean().item() == pytest.approx(case["loss"], rel=1e-6)
    if "per_image" in case:
        np.testing.assert_allclose(losses.numpy(), case["per_image"], rtol=1e-5)


@pytest.mark.parametrize("gamma, stack_weights", [(0.0, (1, 2, 5)), (1.0, ()), (1.5, (1, 2, 5)), (2.0, (1, 2, 5))])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_loss_and_gradients_are_those_of_the_formula(
    gamma: float, stack_weights: tuple[float, ...], memory_format: torch.memory_format
) -> None:
    """Where a mask ignores a cell, or a channel of an image, it has no gradient at all."""
    predictions, target, mask = measured_input({"seed": 3, "batch": 2, "size": 32, "nstack": 3})
    predictions = [[maps.clone(memory_format=memory_format) for maps in stack] for stack in predictions]
    mask = mask * torch.arange(2 * 50).view(2, 50, 1, 1).remainder(3).clamp(max=1)
    loss = make_loss(gamma=gamma, stack_weights=stack_weights)
    leaves = [maps.requires_grad_() for stack in predictions for maps in stack]
    results = []
    for losses in (loss(predictions, target, mask), formula(loss, predictions, target, mask)):
        results.append([losses.detach(), *torch.autograd.grad(losses.sum(), leaves)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)
    assert results[0][0].min() > 1
    assert all(gradient.eq(0).all() for gradient in (results[0][1][0, ::3], results[0][-1][0, ::3]))


def test_predictions_of_other_shapes_are_refused() -> None:
    """As a network of the user may return them."""
    predictions, target, mask = random_input(stacks=2)
    for wrong in ([], predictions[:1], predictions[0], [[*stack[:-1], stack[-2]] for stack in predictions]):
        with pytest.raises(ConfigError, match="forward of the network returns .* for every stack"):
            make_loss(stack_weights=(1, 2))(wrong, target, mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_half_precision_predictions_is_computed_in_single_precision(dtype: torch.dtype) -> None:
    predictions, target, mask = random_input()
    halves = [[maps.to(dtype) for maps in stack] for stack in predictions]
    expected = make_loss()([[maps.float() for maps in stack] for stack in halves], target, mask)
    losses = make_loss()(halves, target, mask)
    assert losses.dtype == torch.float32 and torch.equal(losses, expected)


@pytest.mark.parametrize("method", ["forward", "_cell_losses"])
def test_a_changed_formula_changes_the_training(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The loss that is read is the one that trains."""
    original = getattr(FocalL2Loss, method)
    losses = []
    for factor in (1, 2):
        monkeypatch.setattr(FocalL2Loss, method, lambda *inputs: factor * original(*inputs))
        train_tiny(stores, tmp_path / str(factor), "optim.max_grad_norm=0", max_steps=1)
        (entry,) = read_log(tmp_path / str(factor), "train")
        losses.append((entry["loss"], entry["gradient_norm"]))
    (loss, norm), doubled = losses
    assert doubled == pytest.approx((2 * loss, 2 * norm), rel=1e-3)
