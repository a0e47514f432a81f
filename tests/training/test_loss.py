"""The focal L2 loss: parity with measured values, its formula, masks, weights and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from posenet.settings import LossConfig, load_config
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss, LossTermMeter

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "loss.json").read_text())
Predictions = list[list[Tensor]]


def make_loss(**changes: Any) -> FocalL2Loss:
    """The loss with the default settings but for ``changes``."""
    return FocalL2Loss(LossConfig(**changes), COCO)


def measured_input(case: dict[str, Any]) -> tuple[Predictions, Tensor, Tensor]:
    """The fixture's recipe: predictions stack by stack, fine to coarse, then targets and mask."""
    n, size = case["batch"], case["size"]
    r = np.random.default_rng(case["seed"])
    predictions = [
        [
            torch.from_numpy(r.standard_normal((n, 50, size >> j, size >> j)).astype(np.float32) * 0.3 + 0.1)
            for j in range(5)
        ]
        for _ in range(case["nstack"])
    ]
    r = np.random.default_rng(case["seed"] + 1000)
    target = np.clip(r.standard_normal((n, 50, size, size)), 0, 1).astype(np.float32)
    target = target * (r.random(target.shape) > 0.7)
    mask = (r.random((n, 1, size, size)) > 0.2).astype(np.float32)
    return predictions, torch.from_numpy(target), torch.from_numpy(mask)


def random_input(stacks: int = 1, n: int = 2, size: int = 16, seed: int = 0) -> tuple[Predictions, Tensor, Tensor]:
    predictions, target, _ = measured_input({"seed": seed, "batch": n, "size": size, "nstack": stacks})
    return predictions, target, torch.ones(n, 1, size, size)


def constant(value: float, n: int = 1, size: int = 16) -> Tensor:
    return torch.full((n, 50, size, size), value)


def constant_predictions(value: float, n: int = 1, size: int = 16) -> Predictions:
    return [[torch.full((n, 50, size >> j, size >> j), value) for j in range(5)]]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"stacks{case['nstack']}-gamma{case['gamma']}")
def test_losses_are_the_measured_ones(case: dict[str, Any]) -> None:
    losses = make_loss(gamma=case["gamma"])(*measured_input(case))
    assert losses.shape == (case["batch"],) and losses.dtype == torch.float32
    assert losses.mean().item() == pytest.approx(case["loss"], rel=1e-4)
    if "per_image" in case:
        np.testing.assert_allclose(losses.numpy(), case["per_image"], rtol=1e-4)


@pytest.mark.parametrize("gamma", [0, 1, 1.5, 2])
@pytest.mark.parametrize(
    "prediction, target, difficulty",
    [
        (0.3, 0.8, 0.7),
        (0.3, 0.0, 0.3),
        (1.2, 0.8, 0.2),
        (-0.4, 0.0, 0.4),
        (0.3, 0.01, 0.7),
        (0.3, 0.009, 0.3),
    ],
)
def test_one_cell_follows_the_formula(gamma: float, prediction: float, target: float, difficulty: float) -> None:
    loss = make_loss(
        gamma=gamma, scale_weights=(1, 0, 0, 0, 0), part_weight=0, keypoint_weight=0, mask_weight=1, foreground_weight=0
    )
    value = loss(constant_predictions(prediction), constant(target), torch.ones(1, 1, 16, 16))
    assert value.item() == pytest.approx(256 * (prediction - target) ** 2 * difficulty**gamma, rel=1e-5)


@pytest.mark.parametrize(
    "channels, weights",
    [
        (slice(0, 30), {"part_weight": 2.0}),
        (slice(30, 48), {"keypoint_weight": 2.0}),
        (slice(48, 49), {"mask_weight": 2.0}),
        (slice(49, 50), {"foreground_weight": 2.0}),
    ],
)
def test_each_weight_belongs_to_its_channels(channels: slice, weights: dict[str, float]) -> None:
    nothing = dict.fromkeys(("part_weight", "keypoint_weight", "mask_weight", "foreground_weight"), 0.0)
    predictions, target, mask = random_input()
    value = make_loss(gamma=0, scale_weights=(1, 0, 0, 0, 0), **nothing | weights)(predictions, target, mask)
    squared = (predictions[0][0] - target)[:, channels] ** 2
    torch.testing.assert_close(value, 2 * squared.sum((1, 2, 3)))


def test_targets_are_average_pooled_to_every_scale() -> None:
    target = random_input()[1]
    pooled = [torch.nn.functional.avg_pool2d(target, 1 << j) for j in range(5)]
    assert make_loss()([pooled], target, torch.ones(2, 1, 16, 16)).max() < 1e-6


def test_scales_are_averaged_by_their_weights() -> None:
    predictions, target, mask = random_input()
    alone = [make_loss(scale_weights=[float(i == j) for i in range(5)])(predictions, target, mask) for j in range(5)]
    weights = (0.1, 0.2, 0.4, 1.6, 6.4)
    expected = sum(w * loss for w, loss in zip(weights, alone)) / sum(weights)
    torch.testing.assert_close(make_loss()(predictions, target, mask), expected)


def test_stacks_are_averaged_equally_unless_weighted() -> None:
    predictions, target, mask = random_input(stacks=2)
    first, second = (make_loss()([stack], target, mask) for stack in predictions)
    torch.testing.assert_close(make_loss()(predictions, target, mask), (first + second) / 2)
    weighted = make_loss(stack_weights=(1, 3))(predictions, target, mask)
    torch.testing.assert_close(weighted, (first + 3 * second) / 4)


def test_predictions_in_ignored_cells_change_nothing() -> None:
    predictions, target, mask = random_input()
    mask[:, :, :, :8] = 0
    before = make_loss()(predictions, target, mask)
    for j, scale in enumerate(predictions[0][:-1]):
        scale[..., : 8 >> j] += 5
    torch.testing.assert_close(make_loss()(predictions, target, mask), before, rtol=0, atol=0)
    predictions[0][0][..., 8:] += 5
    assert (make_loss()(predictions, target, mask) > before).all()


def test_a_coarse_cell_counts_by_its_supervised_share_from_a_half_up() -> None:
    loss = make_loss(gamma=0, scale_weights=(0, 1, 0, 0, 0))
    predictions, target = constant_predictions(1), constant(0)

    def value(ignored: int) -> float:
        mask = torch.ones(1, 1, 16, 16)
        for y, x in [(4, 6), (4, 7), (5, 6), (5, 7)][:ignored]:  # the four cells of one coarse cell
            mask[0, 0, y, x] = 0
        return loss(predictions, target, mask).item()

    cell = value(0) / 64
    assert value(1) == pytest.approx(63.75 * cell) and value(2) == pytest.approx(63.5 * cell)
    assert value(3) == pytest.approx(63 * cell) and value(4) == pytest.approx(63 * cell)


def test_an_ignored_picture_costs_nothing() -> None:
    predictions, target, mask = random_input()
    mask[1] = 0
    losses = make_loss()(predictions, target, mask)
    assert losses[0] > 0 and losses[1] == 0


def test_a_picture_does_not_feel_its_batch_mates() -> None:
    predictions, target, mask = random_input(n=3, stacks=2)
    together = make_loss()(predictions, target, mask)
    for i in range(3):
        own = [[scale[i : i + 1] for scale in stack] for stack in predictions]
        torch.testing.assert_close(make_loss()(own, target[i : i + 1], mask[i : i + 1])[0], together[i])


@pytest.mark.parametrize("gamma", [0, 1, 1.5, 2])
def test_gradients_are_finite_also_where_predictions_are_exact(gamma: float) -> None:
    for value, truth in ((0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (1.0, 0.5), (0.0, 0.5), (-1e4, 0.0), (1e4, 1.0)):
        predictions = [[scale.requires_grad_() for scale in constant_predictions(value)[0]]]
        make_loss(gamma=gamma)(predictions, constant(truth), torch.ones(1, 1, 16, 16)).mean().backward()
        for scale in predictions[0]:
            assert torch.isfinite(scale.grad).all()
            assert scale.grad.eq(0).all() == (value == truth or (gamma > 0 and value == float(truth > 0)))


def test_the_gradient_is_that_of_finite_differences() -> None:
    predictions, target, mask = random_input(n=1)
    finest = predictions[0][0].requires_grad_()
    loss = make_loss(scale_weights=(1, 0, 0, 0, 0))
    (gradient,) = torch.autograd.grad(loss(predictions, target, mask).sum(), finest)
    step = 1e-2
    for cell in ((0, 0, 0, 0), (0, 35, 3, 7), (0, 48, 9, 2), (0, 49, 15, 15)):
        values = []
        for sign in (1, -1):
            moved = finest.detach().clone()
            moved[cell] += sign * step
            values.append(loss([[moved, *predictions[0][1:]]], target, mask).double().item())
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient[cell].item(), abs=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_predictions_give_a_single_precision_loss(dtype: torch.dtype) -> None:
    predictions, target, mask = random_input()
    halves = [[scale.to(dtype) for scale in stack] for stack in predictions]
    losses = make_loss()(halves, target, mask)
    assert losses.dtype == torch.float32
    exact = make_loss()([[scale.float() for scale in stack] for stack in halves], target, mask)
    torch.testing.assert_close(losses, exact, rtol=0, atol=0)


def test_a_prediction_that_is_not_a_number_shows_in_its_own_picture_only() -> None:
    predictions, target, mask = random_input()
    predictions[0][0][1, 0, 0, 0] = float("nan")
    assert make_loss()(predictions, target, mask).isnan().tolist() == [False, True]


@pytest.mark.parametrize("stacks", [1, 3])
def test_stack_weights_must_fit_the_stacks(stacks: int) -> None:
    with pytest.raises(ValueError, match=f"2 stack weights for {stacks} stacks"):
        make_loss(stack_weights=(1, 2))(*random_input(stacks))


def test_every_stack_must_predict_every_scale() -> None:
    predictions, target, mask = random_input(2)
    with pytest.raises(ValueError, match="every stack must predict 5 scales"):
        make_loss()([predictions[0], predictions[1][:4]], target, mask)


def test_from_config_takes_every_setting() -> None:
    config = load_config(
        None,
        [
            "model.stacks=2",
            "loss.gamma=1",
            "loss.stack_weights=[1, 3]",
            "loss.scale_weights=[1, 1, 1, 1, 4]",
            "loss.part_weight=2",
            "loss.keypoint_weight=4",
            "loss.mask_weight=5",
            "loss.foreground_weight=6",
            "loss.positive_threshold=0.1",
        ],
    )
    configured = FocalL2Loss.from_config(config)
    direct = make_loss(
        gamma=1,
        scale_weights=(1, 1, 1, 1, 4),
        stack_weights=(1, 3),
        part_weight=2,
        keypoint_weight=4,
        mask_weight=5,
        foreground_weight=6,
        positive_threshold=0.1,
    )
    inputs = random_input(2)
    torch.testing.assert_close(configured(*inputs), direct(*inputs), rtol=0, atol=0)


def test_an_exponent_above_2_follows_the_formula() -> None:
    only_mask_channel = dict(part_weight=0, keypoint_weight=0, mask_weight=1, foreground_weight=0)
    loss = make_loss(gamma=3, scale_weights=(1, 0, 0, 0, 0), **only_mask_channel)
    value = loss(constant_predictions(0.3), constant(0.8), torch.ones(1, 1, 16, 16))
    assert value.item() == pytest.approx(256 * (0.3 - 0.8) ** 2 * (1 - 0.3) ** 3, rel=1e-5)


def test_predictions_must_have_the_shape_of_the_target() -> None:
    predictions, target, mask = random_input(n=2)
    one_image = [[scale[:1] for scale in predictions[0]]]
    with pytest.raises(ValueError, match=r"predictions \(1, 50, 16, 16\) do not fit target \(2, 50, 16, 16\)"):
        make_loss()(one_image, target, mask)


def test_the_weights_of_the_loss_are_settings_and_no_state() -> None:
    assert make_loss().state_dict() == {}


def test_the_logged_terms_are_the_mean_over_images_with_five_digits() -> None:
    meter = LossTermMeter()
    meter.add(torch.tensor([[[1.0, 2.0]]]))
    meter.add(torch.tensor([[[4.0, 123456.0]], [[4.0, 123456.0]]]))
    assert meter.read() == [[3.0, 82305.0]]
    assert meter.read() is None


def test_the_logged_terms_start_again_if_the_number_of_stacks_changes() -> None:
    meter = LossTermMeter()
    meter.add(torch.tensor([[[1.0], [2.0]]]))
    meter.add(torch.tensor([[[5.0]]]))
    meter.add(torch.tensor([[[7.0]]]))
    assert meter.read() == [[6.0]]
