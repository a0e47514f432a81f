"""Building blocks: convolution with batch normalisation, residual block, squeeze-and-excitation.

All take and return (N, C, h, w) floating-point tensors. A convolution that batch normalisation follows has
no bias, since the normalisation would take it out again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def activation() -> nn.LeakyReLU:
    """The network's only nonlinearity; it overwrites its input, which spares training a copy of every map."""
    return nn.LeakyReLU(0.01, inplace=True)


class ConvNorm(nn.Module):
    """Convolution, batch normalisation and, unless ``linear``, activation. Keeps the size at stride 1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = nn.Identity() if linear else activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))


class Residual(nn.Module):
    """Bottleneck of half the output width, added to its input (He et al., arXiv 1512.03385)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        middle = outputs // 2
        self.reduce = ConvNorm(inputs, middle, 1)
        self.spatial = ConvNorm(middle, middle, 3)
        self.expand = ConvNorm(middle, outputs, 1, linear=True)
        self.shortcut = nn.Identity() if inputs == outputs else ConvNorm(inputs, outputs, 1, linear=True)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    """Weighs every channel by a number in (0, 1) read from all channels' means (Hu et al., arXiv 1709.01507)."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.activation = activation()
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))  # (N, C)
        weights = torch.sigmoid(self.excite(self.activation(self.squeeze(means))))  # (N, C)
        return x * weights[:, :, None, None]
