"""A network's copy for prediction alone: faster, and as accurate."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from posenet.devices.precision import DTYPES, Amp
from posenet.model.layers import ConvNorm


class FusedNetwork(nn.Module):
    """What is left of a network when nobody trains it any more.

    Batch normalisation is folded into the convolutions before it, weights are held in the precision that they are used
    in, and channels lie innermost, as CPUs and tensor cores want them. The network itself is neither changed nor kept.

    Args:
        network: has ``heatmaps``; of other layers than ours none is folded.
        amp: precision of weights and features; see ``select_amp``.
    """

    channels_last = True

    def __init__(self, network: nn.Module, amp: Amp = "off") -> None:
        super().__init__()
        network = copy.deepcopy(network).eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, ConvNorm):
                module.conv, module.norm = fuse_conv_bn_eval(module.conv, module.norm), nn.Identity()
        self.amp, self.dtype = amp, DTYPES[amp]
        self.network = network.to(dtype=self.dtype, memory_format=torch.channels_last)

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) float32 BGR 0-1 to (N, C, H/4, W/4) float32; ``images`` best in channels_last."""
        maps = self.network.heatmaps(images.to(self.dtype, memory_format=torch.channels_last))
        return maps.to(torch.float32, memory_format=torch.contiguous_format)
