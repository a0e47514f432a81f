"""The network: a stem, then stacked hourglasses that each predict every map at five sizes.

Simple Pose (Li, Su, Wang, AAAI 2020, arXiv 1911.10529), where it is called the identity mapping hourglass
network: what a stack predicts, and the features it predicts from, are added to the next stack's input and
to its output at every size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenet.model.hourglass import Hourglass
from posenet.model.layers import ConvNorm, Residual, SqueezeExcite
from posenet.settings import INPUT_MULTIPLE, Config
from posenet.settings.sections import NUM_SCALES
from posenet.skeleton import COCO


class PoseNet(nn.Module):
    """Maps of body parts, keypoints, person mask and keypoint foreground.

    Args:
        num_channels: maps to predict, as ``Skeleton.num_channels`` counts them.
        stacks: hourglasses one behind the other.
        width: channels at stride 4, a multiple of 16.
        growth: channels that each coarser size adds, even.
        conv_std: standard deviation of the initial convolution weights.
        linear_std: standard deviation of the initial weights of the squeeze-and-excitation layers.
    """

    def __init__(
        self,
        num_channels: int = COCO.num_channels,
        stacks: int = 4,
        width: int = 256,
        growth: int = 128,
        conv_std: float = 0.001,
        linear_std: float = 0.01,
    ) -> None:
        super().__init__()
        if stacks < 1 or width < 16 or width % 16 or growth < 0 or growth % 2:
            raise ValueError(
                f"no network of {stacks} stacks, width {width} and growth {growth}: "
                "stacks start at 1, width is a multiple of 16, growth is even"
            )
        channels = [width + growth * scale for scale in range(NUM_SCALES)]  # fine to coarse
        self.stem = Stem(width)
        self.stacks = nn.ModuleList(Stack(num_channels, channels) for _ in range(stacks))
        self.merges = nn.ModuleList(
            nn.ModuleList(Merge(num_channels, width, outputs) for outputs in channels) for _ in range(stacks - 1)
        )
        self._initialise(conv_std, linear_std)

    @classmethod
    def from_config(cls, config: Config) -> PoseNet:
        """The network of an experiment, with the channels of its skeleton."""
        model = config.model
        return cls(
            model.skeleton.num_channels, model.stacks, model.width, model.growth, model.conv_std, model.linear_std
        )

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        """All predictions, for training.

        Args:
            images: (N, 3, H, W) BGR, values 0-1, of the weights' dtype (float32); H and W are multiples of 64.

        Returns:
            predictions[stack][scale], (N, num_channels, H/4 >> scale, W/4 >> scale).

        Raises:
            ValueError: images of another shape or dtype.
        """
        return self._predict(images, NUM_SCALES)

    def heatmaps(self, images: Tensor) -> Tensor:
        """The final maps alone, (N, num_channels, H/4, W/4): ``forward(images)[-1][0]``.

        Stride-4 maps depend on no coarser prediction of any stack, so none of those is computed. Takes and
        raises what ``forward`` does; the mode (training or evaluation) and gradients are the caller's choice.
        """
        return self._predict(images, 1)[-1][0]

    def head_parameter_names(self) -> list[str]:
        """Parameters that fine-tuning trains while all others are frozen: the heads of every stack and scale.

        A head is what turns an hourglass's output into maps: two 3x3 convolutions, squeeze-and-excitation
        and the final 1x1 convolution. The merges between stacks are no heads, though their ``maps`` half has
        the shape of ``num_channels`` too: train ``merges.*.maps.*`` as well when that number changes.
        """
        return [
            f"stacks.{index}.heads.{name}"
            for index, stack in enumerate(self.stacks)
            for name, _ in stack.heads.named_parameters()
        ]

    def _predict(self, images: Tensor, scales: int) -> list[list[Tensor]]:
        """Predictions of every stack at the ``scales`` finest sizes."""
        self._check(images)
        x = self.stem(images)  # (N, D, H/4, W/4)
        first, *later = self.stacks
        maps, features = first(x, scales)
        predictions = [maps]
        for stack, merges in zip(later, self.merges):
            residuals = [merge(map_, feature) for merge, map_, feature in zip(merges, maps, features)]
            finest, *_ = residuals
            x = x + finest  # (N, D, H/4, W/4)
            maps, features = stack(x, scales, residuals)
            predictions.append(maps)
        return predictions

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be (N, 3, H, W), not {tuple(images.shape)}")
        if images.shape[2] % INPUT_MULTIPLE or images.shape[3] % INPUT_MULTIPLE:
            raise ValueError(
                f"image height and width must be multiples of {INPUT_MULTIPLE}, "
                f"not {images.shape[2]} x {images.shape[3]}: resize or pad them"
            )
        dtype = self.stem.entry.conv.weight.dtype
        if images.dtype != dtype:
            raise ValueError(
                f"images must be {dtype} with values 0-1, not {images.dtype}: convert them, "
                "and divide 8-bit ones by 255"
            )

    def _initialise(self, conv_std: float, linear_std: float) -> None:
        """Normal weights and no biases; batch normalisation keeps PyTorch's scale 1 and shift 0."""
        deviation = {nn.Conv2d: conv_std, nn.Linear: linear_std}
        for module in self.modules():
            # Weights on "meta", where a network has a shape but no memory, have no values.
            if type(module) in deviation and not module.weight.is_meta:
                nn.init.normal_(module.weight, std=deviation[type(module)])
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class Stem(nn.Module):
    """(N, 3, H, W) images -> (N, width, H/4, W/4) features: half of them fine, half with a wide view."""

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


class Head(nn.Module):
    """Hourglass output of one size -> its maps (N, num_channels, h, w) and the features (N, width, h, w) they use."""

    def __init__(self, inputs: int, width: int, num_channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNorm(inputs, width, 3), ConvNorm(width, width, 3), SqueezeExcite(width))
        self.output = nn.Conv2d(width, num_channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)  # (N, D, h, w)
        return self.output(features), features


class Stack(nn.Module):
    """An hourglass and a head for each of its sizes."""

    def __init__(self, num_channels: int, channels: list[int]) -> None:
        super().__init__()
        self.hourglass = Hourglass(channels)
        self.heads = nn.ModuleList(Head(inputs, channels[0], num_channels) for inputs in channels)

    def forward(
        self, x: Tensor, scales: int, residuals: list[Tensor] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Maps and features of the ``scales`` finest sizes; ``residuals`` are added to the hourglass's outputs."""
        levels = self.hourglass(x)[:scales]
        if residuals is not None:
            levels = [level + residual for level, residual in zip(levels, residuals)]
        maps, features = zip(*(head(level) for head, level in zip(self.heads, levels)))
        return list(maps), list(features)


class Merge(nn.Module):
    """What one stack's maps and features of one size add to the next stack, as (N, outputs, h, w)."""

    def __init__(self, num_channels: int, width: int, outputs: int) -> None:
        super().__init__()
        self.maps = ConvNorm(num_channels, outputs, 1, linear=True)
        self.features = ConvNorm(width, outputs, 1, linear=True)

    def forward(self, maps: Tensor, features: Tensor) -> Tensor:
        return self.maps(maps) + self.features(features)
