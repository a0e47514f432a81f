"""The network's input format."""

from __future__ import annotations

import torch
from torch import Tensor


def images_to_input(images: Tensor, channels_last: bool = False) -> Tensor:
    """Convert (N, H, W, 3) BGR uint8 images to the network's input, (N, 3, H, W) float32 in [0, 1].

    The memory format of the result is contiguous or channels-last.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return images.permute(0, 3, 1, 2).to(torch.float32, memory_format=memory_format).div_(255)
