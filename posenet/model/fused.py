"""A faster copy of a trained network for prediction: folded BatchNorm, low precision, channels-last memory format."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from posenet.devices.precision import DTYPES, Amp
from posenet.model.layers import ConvNorm, UpsampleConv2d
from posenet.model.posenet import PoseNet


class FusedNetwork(nn.Module):
    """A copy of a network that can predict but not train.

    Five changes make it faster than the original. Each batch normalization is folded into the convolution before it:
    in evaluation mode both are linear, so that one convolution computes the same as the two. Between the stacks of a
    ``PoseNet``, three convolutions become one; see ``PoseNet.reduce_to_heatmaps``. The kernels of ``UpsampleConv2d``
    are computed once. The weights are stored in the precision that the network computes in. The memory format is
    channels-last, which is faster on CPUs and tensor cores. The copy shares no memory with the original, which does not
    change.

    Args:
        network: any network with a method ``heatmaps``; batch normalizations are folded in ``ConvNorm`` layers only.
        amp: precision of weights and features; see ``select_amp``.
        upsample_first: enlarge maps before the convolutions of ``UpsampleConv2d``. This takes more operations, but
            OpenVINO and ONNX Runtime do not compute transposed convolutions faster in 8 bits.

    Attributes:
        channels_last: asks callers for images in the channels-last memory format.
        dtype: the type of weights, features and maps.
    """

    channels_last = True

    def __init__(self, network: nn.Module, amp: Amp = "off", upsample_first: bool = False) -> None:
        super().__init__()
        self.amp = amp
        self.dtype = DTYPES[amp]
        network = copy.deepcopy(network).eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, ConvNorm) and not isinstance(module.norm, nn.Identity):
                conv = fuse_conv_bn_eval(module.conv, module.norm)
                if isinstance(conv, UpsampleConv2d):
                    conv = conv.to_upsample_first() if upsample_first else conv.to_transposed()
                module.conv = conv
                module.norm = nn.Identity()
        if type(network) is PoseNet:  # one that is derived from it may compute the maps in another way
            network.reduce_to_heatmaps()
        self.network = network.to(dtype=self.dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) float32 BGR 0-1, best in channels-last format, to (N, num_channels, H/4, W/4) in ``dtype``."""
        inputs = images.to(self.dtype, memory_format=torch.channels_last)
        maps: Tensor = self.network.heatmaps(inputs)
        return maps.contiguous()
