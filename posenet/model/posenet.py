"""The network: a stem and stacked hourglasses, each of which predicts all maps at five scales.

Simple Pose (Li, Su, Wang, AAAI 2020, arXiv 1911.10529) calls it the identity mapping hourglass network: the maps that a
stack predicts, and the features it predicts them from, are added to the next stack's input and to the output of the
next stack's hourglass at every scale.

In the shapes below, D is ``model.width``, and scale j has stride 4 << j and D + j * ``model.growth`` channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenet.model.layers import ConvNorm, Residual, SqueezeExcite
from posenet.settings import INPUT_MULTIPLE, NUM_SCALES, Config, ModelConfig

LINEAR_STD = 0.01
"""Standard deviation of the initial weights of linear layers, those of squeeze-excitation; the published one."""


class PoseNet(nn.Module):
    """Predicts maps of body parts, keypoints, person mask and keypoint foreground, in this order of channels."""

    channels_last = False  # whether callers should give images in the channels-last memory format

    def __init__(self, settings: ModelConfig) -> None:
        super().__init__()
        num_channels = settings.skeleton.num_channels
        channels = [settings.width + settings.growth * scale for scale in range(NUM_SCALES)]  # fine to coarse
        self.stem = Stem(settings.width)
        self.stacks = nn.ModuleList(Stack(channels, num_channels) for _ in range(settings.stacks))
        self.merges = nn.ModuleList(Merge(channels, num_channels) for _ in range(settings.stacks - 1))
        self._initialize(settings.conv_std)

    @classmethod
    def from_config(cls, config: Config) -> "PoseNet":
        """Build the network of an experiment."""
        return cls(config.model)

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        """Compute all predictions, as training needs them.

        Args:
            images: (N, 3, H, W) BGR, values 0-1, with the dtype of the weights (float32); H and W multiples of 64.

        Returns:
            predictions[stack][scale], each (N, num_channels, H/4 >> scale, W/4 >> scale).

        Raises:
            ValueError: the images have another shape or dtype.
        """
        return self._predict(images, NUM_SCALES)

    def heatmaps(self, images: Tensor) -> Tensor:
        """Compute only the final maps (N, num_channels, H/4, W/4), which are ``forward(images)[-1][0]``.

        The stride-4 maps of a stack do not depend on coarser predictions, so coarser ones are not computed. Arguments
        and errors are those of ``forward``.
        """
        return self._predict(images, 1)[-1][0]

    @torch.no_grad()
    def reduce_to_heatmaps(self) -> None:
        """Leave only what ``heatmaps`` computes with, in a copy for prediction whose BatchNorm is folded already.

        The coarser heads and merges go. Between two stacks are 1x1 convolutions without activations: O from features to
        maps, M from maps and F from features to the residual. As ``M (O f) + F f = (M O + F) f``, they become one, and
        only the last stack predicts maps. The maps change in rounding only.
        """
        stacks: Any = self.stacks  # the types of an nn.ModuleList do not tell the class of its modules
        merges: Any = self.merges
        for stack in stacks:
            del stack.heads[1:]
        for stack, merge in zip(stacks, merges):
            del merge[1:]
            output, maps, features = stack.heads[0].output, merge[0].maps.conv, merge[0].features.conv
            kernel = maps.weight[..., 0, 0]  # (D', C)
            # Sums, because autocast and TF32 would round the factors of a matrix product.
            features.weight += (kernel[:, :, None, None, None] * output.weight).sum(1)  # of (D', C, D, 1, 1)
            features.bias += maps.bias + (kernel * output.bias).sum(1)
            stack.heads[0].output = nn.Identity()
            merge[0].maps = None

    def head_parameter_names(self) -> list[str]:
        """Names of the parameters of all heads, which ``--freeze all-but-heads`` leaves trainable.

        A head computes maps from the output of an hourglass: two 3x3 convolutions, squeeze-and-excitation and the final
        1x1 convolution. The ``Merge`` modules are not heads, although their ``maps`` convolutions have ``num_channels``
        inputs: if that number changes, train ``merges.*.maps.*`` too.
        """
        return [name for name, _ in self.named_parameters() if ".heads." in name]

    def _predict(self, images: Tensor, num_scales: int) -> list[list[Tensor]]:
        """Predictions of every stack at the ``num_scales`` finest scales."""
        self._check_images(images)
        x = self.stem(images)  # (N, D, H/4, W/4)
        first_stack, *later_stacks = self.stacks
        maps, features = first_stack(x, num_scales)
        predictions = [maps]
        for merge, stack in zip(self.merges, later_stacks):
            residuals = merge(maps, features)  # one per scale
            x = x + residuals[0]  # (N, D, H/4, W/4)
            maps, features = stack(x, num_scales, residuals)
            predictions.append(maps)
        return predictions

    def _check_images(self, images: Tensor) -> None:
        last_stack: Any = self.stacks[-1]
        dtype = last_stack.heads[0].output.weight.dtype  # the copies of DataParallel have no ``parameters()``
        has_shape = images.ndim == 4 and images.shape[1] == 3 and not any(n % INPUT_MULTIPLE for n in images.shape[2:])
        if not has_shape or images.dtype != dtype:
            raise ValueError(
                f"images must be (N, 3, H, W), H and W multiples of {INPUT_MULTIPLE}, of {dtype} with values 0-1, not "
                f"{tuple(images.shape)} of {images.dtype}"
            )

    def _initialize(self, conv_std: float) -> None:
        """Set weights from normal distributions, and biases to 0; BatchNorm keeps PyTorch's initial values."""
        for module in self.modules():
            # Weights on the device "meta" have a shape but no values.
            if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
                nn.init.normal_(module.weight, std=conv_std if isinstance(module, nn.Conv2d) else LINEAR_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class Stem(nn.Module):
    """Compute features at stride 4: half of the channels with a small receptive field, half with a large one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.entry = ConvNorm(3, width // 4, 7, stride=2)
        self.widen = Residual(width // 4, half)
        self.refine = Residual(half, half)
        self.dilated = nn.Sequential(*(ConvNorm(half, half, 3, dilation=d) for d in (3, 3, 4, 4, 5, 5)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.widen(self.entry(images))  # (N, D/2, H/2, W/2)
        fine = self.refine(F.max_pool2d(x, 2))  # (N, D/2, H/4, W/4)
        wide = self.dilated(fine)  # (N, D/2, H/4, W/4)
        return torch.cat([fine, wide], dim=1)  # (N, D, H/4, W/4)


class Stack(nn.Module):
    """An hourglass, and one head per scale."""

    def __init__(self, channels: list[int], num_channels: int) -> None:
        super().__init__()
        self.hourglass = Hourglass(channels)
        self.heads = nn.ModuleList(Head(inputs, channels[0], num_channels) for inputs in channels)

    def forward(
        self, x: Tensor, num_scales: int, residuals: list[Tensor] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Maps and features of the ``num_scales`` finest scales; ``residuals`` are added to the hourglass's output."""
        levels = self.hourglass(x)[:num_scales]
        if residuals is not None:
            levels = [level + residual for level, residual in zip(levels, residuals)]
        maps, features = zip(*(head(level) for head, level in zip(self.heads, levels)))
        return list(maps), list(features)


class Hourglass(nn.Module):
    """Downsample four times by 2, upsample again, and add skip connections at every resolution.

    This is one level, which contains all coarser ones. ``channels`` lists those of this level and of the coarser ones.
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


class Head(nn.Module):
    """Compute the maps of one scale, (N, num_channels, h, w), and the features before them, (N, D, h, w)."""

    def __init__(self, inputs: int, width: int, num_channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNorm(inputs, width, 3), ConvNorm(width, width, 3), SqueezeExcite(width))
        self.output = nn.Conv2d(width, num_channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)  # (N, D, h, w)
        return self.output(features), features


class Merge(nn.ModuleList):
    """Compute what one stack adds to the next: one residual per scale, with the channels of that scale."""

    def __init__(self, channels: list[int], num_channels: int) -> None:
        super().__init__(ScaleMerge(num_channels, channels[0], outputs) for outputs in channels)

    def forward(self, maps: list[Tensor], features: list[Tensor]) -> list[Tensor]:
        """(N, num_channels, h, w) maps and (N, D, h, w) features per scale, of all scales or the finest ones."""
        return [merge(scale_maps, scale_features) for merge, scale_maps, scale_features in zip(self, maps, features)]


class ScaleMerge(nn.Module):
    """Project the maps and the features of one scale to ``outputs`` channels each and add them."""

    def __init__(self, num_channels: int, width: int, outputs: int) -> None:
        super().__init__()
        self.maps: ConvNorm | None = ConvNorm(num_channels, outputs, 1, linear=True)  # None where it is in ``features``
        self.features = ConvNorm(width, outputs, 1, linear=True)

    def forward(self, maps: Tensor, features: Tensor) -> Tensor:
        residual: Tensor = self.features(features) if self.maps is None else self.maps(maps) + self.features(features)
        return residual
