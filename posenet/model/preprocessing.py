"""What becomes of an image before the network sees it."""

from __future__ import annotations

import torch
from torch import Tensor


def prepare(images: Tensor, channels_last: bool = False) -> Tensor:
    """(N, H, W, 3) uint8 to the network's (N, 3, H, W) float32 in [0, 1]."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.permute(0, 3, 1, 2).to(torch.float32, memory_format=layout).div_(255)
