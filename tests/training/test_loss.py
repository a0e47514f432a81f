"""The focal L2 loss: measured values, its formula, masks, weights and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenet.settings import LossConfig, load_config
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss, LossTermMeter

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "loss.json").read_text())
NUM_SCALES = 5
FINEST_SCALE_ONLY = (1, 0, 0, 0, 0)
NO_WEIGHTS = dict.fromkeys(("part_weight", "keypoint_weight", "mask_weight", "foreground_weight"), 0.0)

Predictions = list[list[Tensor]]
"""One list per stack of (N, C, H, W) maps per scale, fine to coarse."""


def make_loss(**changes: Any) -> FocalL2Loss:
    """The loss with the default settings, except for ``changes``."""
    return FocalL2Loss(LossConfig(**changes), COCO)


def measured_input(case: dict[str, Any]) -> tuple[Predictions, Tensor, Tensor]:
    """The random predictions, target and mask with which a case was measured; the order of the numbers matters."""
    num_images = case["batch"]
    size = case["size"]
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


def constant_target(value: float) -> Tensor:
    return torch.full((1, 50, 16, 16), value)


def constant_predictions(value: float) -> Predictions:
    return [[torch.full((1, 50, 16 >> scale, 16 >> scale), value) for scale in range(NUM_SCALES)]]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"stacks{case['nstack']}-gamma{case['gamma']}")
def test_losses_equal_the_measured_ones(case: dict[str, Any]) -> None:
    losses = make_loss(gamma=case["gamma"])(*measured_input(case))
    assert losses.shape == (case["batch"],)
    assert losses.dtype == torch.float32
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
def test_the_loss_of_a_cell_follows_the_formula(
    gamma: float, prediction: float, target: float, difficulty: float
) -> None:
    """Only the person mask counts, in 256 cells with the same values."""
    weights = NO_WEIGHTS | {"mask_weight": 1.0}
    loss = make_loss(gamma=gamma, scale_weights=FINEST_SCALE_ONLY, **weights)
    value = loss(constant_predictions(prediction), constant_target(target), torch.ones(1, 1, 16, 16))
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
def test_each_weight_multiplies_the_loss_of_its_channels(channels: slice, weights: dict[str, float]) -> None:
    predictions, target, mask = random_input()
    loss = make_loss(gamma=0, scale_weights=FINEST_SCALE_ONLY, **NO_WEIGHTS | weights)
    value = loss(predictions, target, mask)
    squared = (predictions[0][0] - target)[:, channels] ** 2
    torch.testing.assert_close(value, 2 * squared.sum((1, 2, 3)))


def test_targets_are_average_pooled_to_every_scale() -> None:
    _, target, mask = random_input()
    pooled = [F.avg_pool2d(target, 1 << scale) for scale in range(NUM_SCALES)]
    assert make_loss()([pooled], target, mask).max() < 1e-6


def test_scales_are_averaged_by_their_weights() -> None:
    predictions, target, mask = random_input()
    weights = (0.1, 0.2, 0.4, 1.6, 6.4)
    weighted_sum = torch.zeros(2)
    for scale, weight in enumerate(weights):
        only_this_scale = [float(other == scale) for other in range(NUM_SCALES)]
        weighted_sum += weight * make_loss(scale_weights=only_this_scale)(predictions, target, mask)
    torch.testing.assert_close(make_loss()(predictions, target, mask), weighted_sum / sum(weights))


def test_stacks_are_averaged_equally_unless_weighted() -> None:
    predictions, target, mask = random_input(stacks=2)
    first, second = (make_loss()([stack], target, mask) for stack in predictions)
    torch.testing.assert_close(make_loss()(predictions, target, mask), (first + second) / 2)
    weighted = make_loss(stack_weights=(1, 3))(predictions, target, mask)
    torch.testing.assert_close(weighted, (first + 3 * second) / 4)


def test_predictions_in_ignored_cells_do_not_change_the_loss() -> None:
    predictions, target, mask = random_input()
    mask[:, :, :, :8] = 0
    before = make_loss()(predictions, target, mask)
    for scale, maps in enumerate(predictions[0][:-1]):
        maps[..., : 8 >> scale] += 5
    torch.testing.assert_close(make_loss()(predictions, target, mask), before, rtol=0, atol=0)
    predictions[0][0][..., 8:] += 5
    assert (make_loss()(predictions, target, mask) > before).all()


def test_a_coarse_cell_is_weighted_by_its_supervised_share_or_ignored_below_one_half() -> None:
    loss = make_loss(gamma=0, scale_weights=(0, 1, 0, 0, 0))
    fine_cells = [(4, 6), (4, 7), (5, 6), (5, 7)]  # of one of the 64 coarse cells
    values = []
    for num_ignored in range(5):
        mask = torch.ones(1, 1, 16, 16)
        for y, x in fine_cells[:num_ignored]:
            mask[0, 0, y, x] = 0
        values.append(loss(constant_predictions(1), constant_target(0), mask).item())
    loss_of_a_cell = values[0] / 64
    supervised_cells = [64, 63.75, 63.5, 63, 63]
    assert values == pytest.approx([loss_of_a_cell * cells for cells in supervised_cells])


def test_the_loss_of_an_ignored_image_is_zero() -> None:
    predictions, target, mask = random_input()
    mask[1] = 0
    losses = make_loss()(predictions, target, mask)
    assert losses[0] > 0
    assert losses[1] == 0


def test_the_loss_of_an_image_does_not_depend_on_the_rest_of_the_batch() -> None:
    predictions, target, mask = random_input(stacks=2, num_images=3)
    together = make_loss()(predictions, target, mask)
    for i in range(3):
        own_predictions = [[maps[i : i + 1] for maps in stack] for stack in predictions]
        alone = make_loss()(own_predictions, target[i : i + 1], mask[i : i + 1])
        torch.testing.assert_close(alone[0], together[i])


@pytest.mark.parametrize("gamma", [0, 1, 1.5, 2])
@pytest.mark.parametrize(
    "prediction, truth", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (1.0, 0.5), (0.0, 0.5), (-1e4, 0.0), (1e4, 1.0)]
)
def test_gradients_are_finite_and_zero_only_where_a_factor_of_the_loss_is_zero(
    gamma: float, prediction: float, truth: float
) -> None:
    """The factors are the error, and the difficulty: the distance from 1 for foreground, from 0 for background."""
    predictions = constant_predictions(prediction)
    for maps in predictions[0]:
        maps.requires_grad_()
    make_loss(gamma=gamma)(predictions, constant_target(truth), torch.ones(1, 1, 16, 16)).mean().backward()
    is_exact = prediction == truth
    is_easy = gamma > 0 and prediction == float(truth > 0)
    for maps in predictions[0]:
        assert maps.grad.isfinite().all()
        assert maps.grad.eq(0).all() == (is_exact or is_easy)


def test_the_gradient_equals_finite_differences() -> None:
    predictions, target, mask = random_input(num_images=1)
    finest = predictions[0][0].requires_grad_()
    loss = make_loss(scale_weights=FINEST_SCALE_ONLY)
    (gradient,) = torch.autograd.grad(loss(predictions, target, mask).sum(), finest)
    step = 1e-2
    for cell in ((0, 0, 0, 0), (0, 35, 3, 7), (0, 48, 9, 2), (0, 49, 15, 15)):
        values = []
        for change in (step, -step):
            changed = finest.detach().clone()
            changed[cell] += change
            values.append(loss([[changed, *predictions[0][1:]]], target, mask).double().item())
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient[cell].item(), abs=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_half_precision_predictions_is_computed_in_single_precision(dtype: torch.dtype) -> None:
    predictions, target, mask = random_input()
    halves = [[maps.to(dtype) for maps in stack] for stack in predictions]
    losses = make_loss()(halves, target, mask)
    assert losses.dtype == torch.float32
    expected = make_loss()([[maps.float() for maps in stack] for stack in halves], target, mask)
    assert torch.equal(losses, expected)


def test_a_nan_prediction_makes_only_the_loss_of_its_image_nan() -> None:
    predictions, target, mask = random_input()
    predictions[0][0][1, 0, 0, 0] = float("nan")
    assert make_loss()(predictions, target, mask).isnan().tolist() == [False, True]


@pytest.mark.parametrize("stacks", [1, 3])
def test_another_number_of_stack_weights_than_stacks_is_an_error(stacks: int) -> None:
    with pytest.raises(ValueError, match=f"2 stack weights for {stacks} stacks"):
        make_loss(stack_weights=(1, 2))(*random_input(stacks))


def test_a_stack_without_all_scales_is_an_error() -> None:
    predictions, target, mask = random_input(2)
    with pytest.raises(ValueError, match="every stack must predict 5 scales"):
        make_loss()([predictions[0], predictions[1][:4]], target, mask)


def test_from_config_applies_every_setting() -> None:
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
    assert torch.equal(configured(*inputs), direct(*inputs))


def test_an_exponent_above_2_follows_the_formula() -> None:
    only_mask_channel = dict(part_weight=0, keypoint_weight=0, mask_weight=1, foreground_weight=0)
    loss = make_loss(gamma=3, scale_weights=(1, 0, 0, 0, 0), **only_mask_channel)
    value = loss(constant_predictions(0.3), constant_target(0.8), torch.ones(1, 1, 16, 16))
    assert value.item() == pytest.approx(256 * (0.3 - 0.8) ** 2 * (1 - 0.3) ** 3, rel=1e-5)


def test_predictions_must_have_the_shape_of_the_target() -> None:
    predictions, target, mask = random_input(num_images=2)
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


def test_channels_that_are_not_supervised_have_no_loss_and_exactly_zero_gradient() -> None:
    predictions, target, mask = random_input(stacks=2, num_images=3)
    supervised = torch.ones(3, 50, dtype=torch.uint8)
    supervised[0, :7] = 0
    supervised[2, 40:] = 0
    for stack in predictions:
        for scale in stack:
            scale.requires_grad_()
    make_loss()(predictions, target, mask, supervised).sum().backward()
    for stack in predictions:
        for scale in stack:
            is_zero = (scale.grad == 0).all(3).all(2)  # (N, C)
            assert torch.equal(is_zero, supervised == 0)


def test_supervised_channels_have_the_loss_and_gradient_of_an_image_that_supervises_all() -> None:
    predictions, target, mask = random_input()
    supervised = torch.ones(2, 50, dtype=torch.uint8)
    supervised[0, 3:11] = 0
    (finest,) = [scales[0].requires_grad_() for scales in predictions]
    losses = make_loss()(predictions, target, mask, supervised)
    (masked_gradient,) = torch.autograd.grad(losses.sum(), finest)
    full_losses = make_loss()(predictions, target, mask)
    (gradient,) = torch.autograd.grad(full_losses.sum(), finest)
    assert torch.equal(masked_gradient, gradient * supervised[:, :, None, None])
    assert losses[1] == full_losses[1]
    assert losses[0] < full_losses[0]


class OperationCounter(TorchDispatchMode):
    """Counts operations, except for those that only make views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_the_memory_format_of_the_predictions_changes_neither_loss_nor_gradient() -> None:
    predictions, target, mask = random_input(2)
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        leaves = [
            [maps.clone(memory_format=memory_format).requires_grad_() for maps in scales] for scales in predictions
        ]
        losses = make_loss()(leaves, target, mask)
        losses.sum().backward()
        results.append((losses.detach(), [maps.grad for scales in leaves for maps in scales]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-9)


def test_the_loss_of_four_stacks_takes_few_operations() -> None:
    """One loss for each stack and scale took 222 operations, more than an accelerator can start in their run time."""
    inputs = random_input(4)
    loss = make_loss()
    with OperationCounter() as counter:
        loss(*inputs)
    assert counter.count < 100
