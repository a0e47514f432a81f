"""Layers of the network."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from posenet.model import layers
from posenet.model.layers import UpsampleConv2d, images_to_input


@pytest.fixture(params=[0, 1000], ids=["transposed", "upsampled"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms in which large and small maps are computed."""
    monkeypatch.setattr(layers, "MIN_CELLS_TO_TRANSPOSE", request.param)


def enlarge_and_convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """What ``UpsampleConv2d`` computes, step by step."""
    return F.conv2d(F.interpolate(x, scale_factor=2, mode="nearest"), layer.weight, layer.bias, padding=1)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("size", [(5, 6), (1, 1), (1, 7)])
def test_upsample_conv_equals_enlarging_and_convolving_borders_and_gradients_included(size: tuple[int, int]) -> None:
    layer = UpsampleConv2d(3, 4).double()
    results = []
    for function in (layer, lambda x: enlarge_and_convolve(x, layer)):
        torch.manual_seed(0)
        x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
        output = function(x)
        assert output.shape == (2, 4, 2 * size[0], 2 * size[1])
        gradients = torch.autograd.grad((output * torch.randn_like(output)).sum(), [x, layer.weight])
        results.append([output, *gradients])
    for value, expected in zip(*results):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_under_autocast_the_kernel_is_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MIN_CELLS_TO_TRANSPOSE", 0)
    layer = UpsampleConv2d(8, 8)
    x = torch.randn(1, 8, 6, 6).bfloat16().float()
    kernel = layer.to_transposed().weight
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
        expected = F.conv_transpose2d(x, kernel, stride=2, padding=1)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected)


def test_only_large_maps_are_convolved_by_a_transposed_convolution() -> None:
    layer = UpsampleConv2d(1, 1)
    for size, flops in ((32, 2 * 9 * 64 * 64), (64, 2 * 16 * 64 * 64)):
        with FlopCounterMode(display=False) as counter:
            layer(torch.zeros(1, 1, size, size))
        assert counter.get_total_flops() == flops


def test_pixels_keep_their_position_and_channel_order_in_both_memory_formats() -> None:
    images = torch.zeros(1, 64, 48, 3, dtype=torch.uint8)
    images[0, 5, 7] = torch.tensor([255, 51, 0], dtype=torch.uint8)
    contiguous, channels_last = (images_to_input(images, channels_last=last) for last in (False, True))
    assert contiguous.is_contiguous() and channels_last.is_contiguous(memory_format=torch.channels_last)
    for inputs in (contiguous, channels_last):
        assert inputs.shape == (1, 3, 64, 48) and inputs.dtype == torch.float32
        torch.testing.assert_close(inputs[0, :, 5, 7], torch.tensor([1.0, 0.2, 0.0]))
        assert inputs.count_nonzero() == 2
