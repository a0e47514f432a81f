"""The input format, and building blocks: convolution with batch normalization, residual block, squeeze-and-excitation.

The blocks map (N, C, h, w) floating-point tensors to (N, C', h, w), unless they say another size. A convolution before
a batch normalization has no bias, because the normalization subtracts it again.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SQUEEZE_REDUCTION = 16
"""Squeeze-and-excitation reduces the channels by this factor."""
MIN_CELLS_TO_TRANSPOSE = 2048
"""Cells of a batch of maps from which on a transposed convolution pays for summing its kernel in every step (CPUs)."""


def images_to_input(images: Tensor, channels_last: bool = False) -> Tensor:
    """Convert (N, H, W, 3) BGR uint8 images to the network's input, (N, 3, H, W) float32 in [0, 1].

    The memory format of the result is contiguous or channels-last.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return images.permute(0, 3, 1, 2).to(torch.float32, memory_format=memory_format).div_(255)


def make_activation() -> nn.LeakyReLU:
    """The activation function of the whole network. It works in place, which saves memory in training."""
    return nn.LeakyReLU(0.01, inplace=True)


class UpsampleConv2d(nn.Conv2d):
    """Enlarge maps by 2 (nearest neighbour) and convolve them with a 3 x 3 kernel: (N, C, h, w) to (N, C', 2h, 2w).

    The enlarged maps are not computed. In one dimension, let w be the kernel, 0 outside its three values, and x the
    map, 0 outside. Cell u of the enlarged map is x[u // 2], so the output is
    ``y[o] = sum over k of w[k] x[(o + k - 1) // 2] = sum over i of x[i] (w[2i - o + 1] + w[2i - o + 2])``.
    This is a transposed convolution of stride 2 and padding 1 with the kernel ``K[t] = w[2 - t] + w[3 - t]``, where
    t = o - 2i + 1 is 0 to 3. In two dimensions K has 4 x 4 values, each the sum of a 2 x 2 box of the flipped kernel.
    It takes 4 multiplications for each output cell and pair of channels, where the 3 x 3 kernel takes 9. Small maps are
    enlarged all the same: for them the sums would take longer than what they save.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] * x.shape[2] * x.shape[3] < MIN_CELLS_TO_TRANSPOSE:
            return super().forward(F.interpolate(x, scale_factor=2, mode="nearest"))
        return F.conv_transpose2d(x, self._transposed_kernel(), self.bias, stride=2, padding=1)

    def to_transposed(self) -> nn.ConvTranspose2d:
        """A layer for prediction that computes the same, with the kernel of the transposed convolution."""
        layer = nn.ConvTranspose2d(self.in_channels, self.out_channels, 4, stride=2, padding=1)
        layer.weight = nn.Parameter(self._transposed_kernel().detach().contiguous(), requires_grad=False)
        layer.bias = self.bias
        return layer

    def to_upsample_first(self) -> nn.Sequential:
        """Two layers that compute the same with these parameters: the enlargement, and the 3 x 3 convolution."""
        conv = nn.Conv2d(self.in_channels, self.out_channels, 3, padding=1)
        conv.weight, conv.bias = self.weight, self.bias
        return nn.Sequential(nn.Upsample(scale_factor=2), conv)

    def _transposed_kernel(self) -> Tensor:
        """(C, C', 4, 4), in the precision of the weights: autocast reduces only the result."""
        flipped = F.pad(self.weight.flip(2, 3), (1, 1, 1, 1))  # (C', C, 5, 5)
        pairs = flipped[:, :, 1:] + flipped[:, :, :-1]  # (C', C, 4, 5)
        boxes = pairs[:, :, :, 1:] + pairs[:, :, :, :-1]  # (C', C, 4, 4)
        return boxes.transpose(0, 1)


class ConvNorm(nn.Module):
    """Convolution, batch normalization and, unless ``linear``, activation. At stride 1 it keeps height and width.

    With ``upsample`` it enlarges the maps by 2 before the convolution, whose kernel must be 3 x 3 then.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        linear: bool = False,
        upsample: bool = False,
    ) -> None:
        super().__init__()
        self.conv: Any  # a convolution; of another class in a FusedNetwork
        if upsample:
            self.conv = UpsampleConv2d(inputs, outputs)
        else:
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
    """Scale each channel by a factor in (0, 1) that depends on the means of all channels (Hu et al., 1709.01507)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // SQUEEZE_REDUCTION)
        self.activation = make_activation()
        self.excite = nn.Linear(channels // SQUEEZE_REDUCTION, channels)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))  # (N, C)
        factors = torch.sigmoid(self.excite(self.activation(self.squeeze(means))))  # (N, C)
        return x * factors[:, :, None, None]  # (N, C, h, w)
