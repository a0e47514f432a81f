"""The parts of training and prediction on an accelerator, each against the CPU in float32.

A part that differs here explains why runs differ in the other modules of the suite: look for the first one that fails.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from posenet.data.targets import TargetRenderer
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import Config, ModelConfig
from posenet.training.loss import FocalL2Loss
from tests.helpers.networks import random_batch_norm

NETWORK_TOLERANCE = 1e-3
TOLERANCE = 1e-5
SIZE = (128, 192)
"""Height and width of the network input."""
CELLS = (SIZE[0] // 4, SIZE[1] // 4)


def relative_difference(values: Tensor, expected: Tensor) -> float:
    """The largest difference from the CPU's values, relative to the largest of them."""
    return ((values.cpu() - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module")
def network() -> PoseNet:
    """Two stacks of half the default width, with random BatchNorm statistics."""
    torch.manual_seed(0)
    settings = ModelConfig(stacks=2, width=128, growth=64, conv_std=0.05, linear_std=0.05)
    return random_batch_norm(PoseNet(settings)).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def joints() -> Tensor:
    """Two samples with six people each, whose keypoints are at random places of a square."""
    rng = np.random.default_rng(0)
    places = rng.uniform((0, 0), (SIZE[1] - 60, SIZE[0] - 60), (2, 6, 1, 2)) + rng.uniform(0, 60, (2, 6, 18, 2))
    visible = np.full((2, 6, 18, 1), 2)
    return torch.from_numpy(np.concatenate([places, visible], axis=3, dtype=np.float32))


@pytest.fixture(scope="module")
def target(joints: Tensor) -> Tensor:
    """The target maps of ``joints``, rendered on the CPU."""
    return TargetRenderer.from_config(Config())(joints, person_mask())


def person_mask() -> Tensor:
    return torch.rand(2, *CELLS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
def test_network(accelerator: torch.device, network: PoseNet, images: Tensor, layout: torch.memory_format) -> None:
    on_device = copy.deepcopy(network).to(device=accelerator, memory_format=layout)
    with torch.inference_mode():
        expected = network(images)
        predictions = on_device(images.to(accelerator, memory_format=layout))
    for stack, (scales, expected_scales) in enumerate(zip(predictions, expected)):
        for scale, (maps, expected_maps) in enumerate(zip(scales, expected_scales)):
            difference = relative_difference(maps, expected_maps)
            assert difference <= NETWORK_TOLERANCE, f"stack {stack}, scale {scale}: look for TF32 or reduced precision"


@pytest.mark.parametrize("amp, tolerance", [("off", NETWORK_TOLERANCE), ("bf16", 0.1), ("fp16", 0.02)])
def test_fused_network(accelerator: torch.device, network: PoseNet, images: Tensor, amp: str, tolerance: float) -> None:
    with torch.inference_mode():
        expected = network.heatmaps(images)
        maps = FusedNetwork(network, amp).to(accelerator).heatmaps(images.to(accelerator))
    assert maps.dtype is {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]
    assert relative_difference(maps.float(), expected) <= tolerance


def test_targets(accelerator: torch.device, joints: Tensor, target: Tensor) -> None:
    renderer = TargetRenderer.from_config(Config()).to(accelerator)
    difference = (renderer(joints.to(accelerator), person_mask().to(accelerator)).cpu() - target).abs()
    # A response that rounding moves to the other side of the threshold becomes part_floor, 0.005 below it.
    at_threshold = (difference > TOLERANCE) & (difference < 0.006)
    assert difference[~at_threshold].max() <= TOLERANCE
    assert at_threshold.float().mean() < 1e-4


def test_loss_and_its_gradient(accelerator: torch.device, target: Tensor) -> None:
    config = Config()
    loss = FocalL2Loss.from_config(config)
    generator = torch.Generator().manual_seed(2)
    shapes = [(2, target.shape[1], CELLS[0] >> scale, CELLS[1] >> scale) for scale in range(5)]
    stacks = [[torch.rand(shape, generator=generator) for shape in shapes] for _ in range(config.model.stacks)]
    mask = (torch.rand(2, 1, *CELLS, generator=generator) > 0.2).float()

    def compute(device: torch.device) -> tuple[Tensor, list[Tensor]]:
        predictions = [[maps.to(device).requires_grad_() for maps in scales] for scales in stacks]
        losses = copy.deepcopy(loss).to(device)(predictions, target.to(device), mask.to(device))
        losses.sum().backward()
        return losses.detach(), [maps.grad for scales in predictions for maps in scales]

    losses, gradients = compute(accelerator)
    expected_losses, expected_gradients = compute(torch.device("cpu"))
    torch.testing.assert_close(losses.cpu(), expected_losses, rtol=TOLERANCE, atol=0)
    for gradient, expected in zip(gradients, expected_gradients):
        assert relative_difference(gradient, expected) <= TOLERANCE
