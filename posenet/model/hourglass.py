"""The hourglass: downsample four times by 2, upsample again, and add skip connections at every resolution."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from posenet.model.layers import ConvNorm, Residual


class Hourglass(nn.Module):
    """One level of an hourglass, which contains all coarser levels.

    ``channels`` lists those of this level and of all coarser ones, at least two. Each level halves height and width.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        fine, coarse = channels[:2]
        self.skip = Residual(fine, fine)
        self.down = Residual(fine, coarse)
        self.inner = Hourglass(channels[1:]) if len(channels) > 2 else Residual(coarse, coarse)
        self.up = Residual(coarse, fine)
        self.smooth = ConvNorm(fine, fine, 3, upsample=True)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The features (N, Cj, h >> j, w >> j) of every level j, fine to coarse, from x (N, C0, h, w)."""
        skip = self.skip(x)  # (N, C0, h, w)
        down = self.down(F.max_pool2d(x, 2))  # (N, C1, h/2, w/2)
        coarser = self.inner(down) if isinstance(self.inner, Hourglass) else [self.inner(down)]
        up = self.smooth(self.up(coarser[0]))  # (N, C0, h, w) from (N, C0, h/2, w/2)
        return [skip + up, *coarser]
