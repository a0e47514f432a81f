"""The hourglass: down to a sixteenth of the input size and back up, remembering every size on the way."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from posenet.model.layers import ConvNorm, Residual


class Hourglass(nn.Module):
    """One level of an hourglass, and inside it all the coarser ones.

    Args:
        channels: channels from this level's size down to the coarsest, each half the size of the one before;
            at least two.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        here, below = channels[:2]
        self.skip = Residual(here, here)
        self.down = Residual(here, below)
        self.inner = Hourglass(channels[1:]) if len(channels) > 2 else Bottom(below)
        self.up = Residual(below, here)
        self.smooth = ConvNorm(here, here, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        """(N, C0, h, w) with h and w divisible to the last level -> [(N, Cj, h >> j, w >> j)], fine to coarse."""
        skip = self.skip(x)  # (N, C0, h, w)
        down = self.down(F.max_pool2d(x, 2))  # (N, C1, h/2, w/2)
        inner, *coarser = self.inner(down)
        up = self.up(inner)  # (N, C0, h/2, w/2)
        up = self.smooth(F.interpolate(up, scale_factor=2, mode="nearest"))  # (N, C0, h, w)
        return [skip + up, inner, *coarser]


class Bottom(Residual):
    """The coarsest size, where the hourglass turns."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [super().forward(x)]
