"""Building blocks: convolution with batch normalization, residual block, squeeze-and-excitation.

All of them map (N, C, h, w) floating-point tensors to (N, C', h, w). A convolution before a batch normalization has no
bias, because the normalization subtracts it again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SQUEEZE_REDUCTION = 16
"""Squeeze-and-excitation reduces the channels by this factor."""


def make_activation() -> nn.LeakyReLU:
    """The activation function of the whole network. It works in place, which saves memory in training."""
    return nn.LeakyReLU(0.01, inplace=True)


class ConvNorm(nn.Module):
    """Convolution, batch normalization and, unless ``linear``, activation. At stride 1 it keeps height and width."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm: nn.BatchNorm2d | nn.Identity = nn.BatchNorm2d(outputs)  # nn.Identity in a FusedNetwork
        self.activation = nn.Identity() if linear else make_activation()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.conv(x)))
        return y


class Residual(nn.Module):
    """Bottleneck with half of the output channels, added to its input (He et al., arXiv 1512.03385)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        middle = outputs // 2
        self.reduce = ConvNorm(inputs, middle, 1)
        self.spatial = ConvNorm(middle, middle, 3)
        self.expand = ConvNorm(middle, outputs, 1, linear=True)
        self.shortcut = nn.Identity() if inputs == outputs else ConvNorm(inputs, outputs, 1, linear=True)
        self.activation = make_activation()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x))
        return y


class SqueezeExcite(nn.Module):
    """Scale each channel by a factor in (0, 1) that depends on the means of all channels.

    Hu et al., arXiv 1709.01507.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // SQUEEZE_REDUCTION)
        self.activation = make_activation()
        self.excite = nn.Linear(channels // SQUEEZE_REDUCTION, channels)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))  # (N, C)
        factors = torch.sigmoid(self.excite(self.activation(self.squeeze(means))))  # (N, C)
        return x * factors[:, :, None, None]  # (N, C, h, w)
