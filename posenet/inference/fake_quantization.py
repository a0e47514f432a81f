"""A network that computes as with 8-bit integers, for calibration and for measuring what each block loses.

An 8-bit convolution rounds its input x and its weights w to integers q, with a scale s and a zero point z each:

    x ~ s_x (q_x - z)     q_x from 0 to 255      one scale and zero point for a tensor, from calibration
    w ~ s_w q_w           q_w from -127 to 127   one scale for each output channel

Here the values are rounded and remain floating-point numbers, so that the maps are those of the exported file except
for the order of sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posenet.errors import CheckpointError
from posenet.model.fused import FusedNetwork
from posenet.model.layers import ConvNorm, Residual

INPUT_LEVELS = 255
"""Largest 8-bit integer of an input; the smallest one is 0."""
WEIGHT_LEVELS = 127
"""Largest 8-bit integer of a weight; the smallest one is its negative."""
SMALLEST_RANGE = 1e-12
"""Difference of the largest and the smallest value below which a tensor has no scale."""


class InputRange(NamedTuple):
    """The values of a convolution's input that 8-bit integers can represent."""

    lowest: float
    highest: float


class FakeQuantizedNetwork:
    """A fused copy of a network in which each convolution can be switched between float32 and simulated 8 bits.

    Args:
        network: any network with a method ``heatmaps``. It does not change.
        calibration: images, (N, 3, H, W) each, on which the ranges of the convolutions' inputs are measured.

    Attributes:
        convolutions: the convolutions that ``heatmaps`` uses, by name.
        ranges: the range of each convolution's input. It contains zero, with which convolutions pad.
        blocks: names of the convolutions in each block, by the block's name, in the order of the network. A block is a
            residual block or another convolution; its convolutions are switched together.

    Raises:
        CheckpointError: the inputs of a convolution are 0 on all images, or so close to 0 that they have no scale.
    """

    def __init__(self, network: nn.Module, calibration: Iterable[Tensor]) -> None:
        self.network = FusedNetwork(network)
        modules = {name: module for name, module in self.network.named_modules() if isinstance(module, nn.Conv2d)}
        self.ranges = self._measure_ranges(modules, calibration)
        self.convolutions = {name: module for name, module in modules.items() if name in self.ranges}
        self.blocks = _group_by_block(self.network, self.convolutions)
        self._float_weights = {name: conv.weight.data for name, conv in self.convolutions.items()}
        self._int8_weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def _measure_ranges(
        self, convolutions: Mapping[str, nn.Conv2d], calibration: Iterable[Tensor]
    ) -> dict[str, InputRange]:
        """The smallest and the largest value of each convolution's input, and 0."""
        ranges: dict[str, InputRange] = {}

        def observe(name: str, x: Tensor) -> None:
            lowest, highest = ranges.get(name, InputRange(0.0, 0.0))
            smallest, largest = torch.aminmax(x)
            ranges[name] = InputRange(min(lowest, smallest.item()), max(highest, largest.item()))

        handles = [
            conv.register_forward_pre_hook(lambda _, args, name=name: observe(name, args[0]))
            for name, conv in convolutions.items()
        ]
        for images in calibration:
            self.network.heatmaps(images)
        for handle in handles:
            handle.remove()
        for name, (lowest, highest) in ranges.items():
            if not highest - lowest >= SMALLEST_RANGE:
                raise CheckpointError(
                    f"the network cannot be rounded to 8 bits: on all calibration images, the largest input of "
                    f"{name.removeprefix('network.')} is {highest:.2g}; train the network, or use a trained checkpoint"
                )
        return ranges

    @torch.no_grad()
    def heatmaps(self, images: Tensor, int8_blocks: Collection[str]) -> Tensor:
        """The maps of (N, 3, H, W) images, with the convolutions of some blocks in simulated 8 bits."""
        names = [name for block in int8_blocks for name in self.blocks[block]]
        handles = []
        for name in names:
            conv = self.convolutions[name]
            if name not in self._int8_weights:
                self._int8_weights[name] = round_weights(conv.weight.data)
            conv.weight.data = self._int8_weights[name]
            handles.append(conv.register_forward_pre_hook(lambda _, args, name=name: self._round_input(name, args[0])))
        try:
            return self.network.heatmaps(images.clone())  # the input of the first convolution is rounded in place
        finally:
            for name in names:
                self.convolutions[name].weight.data = self._float_weights[name]
            for handle in handles:
                handle.remove()

    def _round_input(self, name: str, x: Tensor) -> None:
        """Round the input of a convolution in place.

        The file too rounds a tensor for all that use it, so that the tensor is stored in 8 bits only.
        """
        lowest, highest = self.ranges[name]
        scale = (highest - lowest) / INPUT_LEVELS
        zero_point = round(-lowest / scale)
        x.copy_(torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, INPUT_LEVELS))


def round_weights(weight: Tensor) -> Tensor:
    """Round (O, ...) weights to 8 bits, with one scale for each output channel."""
    largest = weight.flatten(1).abs().amax(1).clamp(min=SMALLEST_RANGE)
    scale = largest / WEIGHT_LEVELS
    zero_point = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scale, zero_point, 0, -WEIGHT_LEVELS, WEIGHT_LEVELS)


def _group_by_block(network: nn.Module, convolutions: Mapping[str, nn.Conv2d]) -> dict[str, list[str]]:
    """Names of convolutions by the name of the outermost residual block, or else ``ConvNorm``, that contains them."""
    containers = [
        name for name, module in network.named_modules() if isinstance(module, Residual | ConvNorm)
    ]  # outer modules first
    blocks: dict[str, list[str]] = {}
    for name in convolutions:
        block = next((container for container in containers if name.startswith(f"{container}.")), name)
        blocks.setdefault(block, []).append(name)
    return blocks
