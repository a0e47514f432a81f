"""The focal L2 loss over all stacks, scales and channels: one value per image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.settings import Config, LossConfig
from posenet.skeleton import Skeleton

Predictions = Sequence[Sequence[Tensor]]
"""predictions[stack][scale]: (N, C, h >> scale, w >> scale)."""


class LossTermMeter:
    """Mean of the terms of a loss over all images since the last reading. ``add`` does not wait for the device.

    The replicas that DataParallel makes of a module share one meter. It has one sum for each device.
    """

    def __init__(self) -> None:
        self._sums: dict[torch.device, Tensor] = {}
        self._images: dict[torch.device, int] = {}

    def add(self, terms: Tensor) -> None:
        """Add (N, stacks, scales) terms. Terms of another shape than before restart the mean."""
        device = terms.device
        total = terms.detach().sum(0)
        if device in self._sums and self._sums[device].shape == total.shape:
            self._sums[device].add_(total)
            self._images[device] += len(terms)
        else:
            self._sums[device] = total
            self._images[device] = len(terms)

    def read(self) -> list[list[float]] | None:
        """Return the mean terms by stack and scale and reset; None if there are none or they are not finite."""
        sums = [total.cpu() for total in self._sums.values()]
        images = sum(self._images.values())
        self._sums = {}
        self._images = {}
        if not images:
            return None
        mean = torch.stack(sums).sum(0) / images
        if not mean.isfinite().all():
            return None
        # Five digits are enough for the log and keep it small.
        return [[float(f"{value:.5g}") for value in row] for row in mean.tolist()]


class FocalL2Loss(nn.Module):
    """Squared error with a larger weight for cells that are far from their target (Simple Pose, section 3.4).

    For a prediction s and a target t, let q = s where t is foreground (t >= ``positive_threshold``) and q = 1 - s
    elsewhere. The loss of one cell is ``(s - t)^2 * |1 - q|^gamma * mask_miss * channel_weight``. It is 0 in channels
    that the image's data set does not supervise. It is summed over channels and cells, averaged over stacks and
    averaged over scales; both averages are weighted. In training mode, ``meter`` averages the contribution of every
    stack and scale.
    """

    channel_weights: Tensor

    def __init__(self, settings: LossConfig, skeleton: Skeleton) -> None:
        super().__init__()
        self.gamma = settings.gamma
        self.positive_threshold = settings.positive_threshold
        self.scale_weights = _normalized(settings.scale_weights)
        self.stack_weights = _normalized(settings.stack_weights)
        self.meter = LossTermMeter()
        weights = (
            [settings.part_weight] * skeleton.num_parts
            + [settings.keypoint_weight] * skeleton.num_keypoints
            + [settings.mask_weight, settings.foreground_weight]
        )
        self.register_buffer("channel_weights", torch.tensor(weights).view(1, -1, 1, 1), persistent=False)

    @classmethod
    def from_config(cls, config: Config) -> FocalL2Loss:
        return cls(config.loss, config.model.skeleton)

    def forward(
        self, predictions: Predictions, target: Tensor, mask_miss: Tensor, supervised: Tensor | None = None
    ) -> Tensor:
        """(N,) float32: the loss of every image, the sum of its ``terms``.

        There is one value per image, so that the mean over images is the same on one device and on several.
        """
        terms = self.terms(predictions, target, mask_miss, supervised)
        if self.training:
            self.meter.add(terms)
        return terms.sum((1, 2))

    def terms(
        self, predictions: Predictions, target: Tensor, mask_miss: Tensor, supervised: Tensor | None = None
    ) -> Tensor:
        """The contribution of every stack and scale to the loss of every image, weights included.

        Args:
            predictions: predictions[stack][scale] of shape (N, C, h >> scale, w >> scale).
            target: (N, C, h, w) at the finest scale, in [0, 1].
            mask_miss: (N, 1, h, w); 1 where a cell is supervised, 0 where it is ignored.
            supervised: (N, C); 1 for channels that are supervised, 0 for those that are ignored; None means all.

        Returns:
            (N, stacks, scales) float32.

        Raises:
            ValueError: the number of stacks or scales differs from that of the weights, or shapes do not match.
        """
        self._check(predictions, target)
        stacks = len(predictions)
        stack_weights = self.stack_weights or [1 / stacks] * stacks
        target = target.float()
        mask_miss = mask_miss.float()
        channel_weights = self.channel_weights  # (1, C, 1, 1)
        if supervised is not None:
            channel_weights = channel_weights * supervised[:, :, None, None]  # (N, C, 1, 1)
        terms = []
        for scale, scale_weight in enumerate(self.scale_weights):
            if scale:
                target = F.avg_pool2d(target, 2)
            cell_weights = channel_weights * _shrink_mask(mask_miss, target)  # (N, C, h >> scale, w >> scale)
            foreground = target >= self.positive_threshold
            stack_terms = []
            for stack, stack_weight in enumerate(stack_weights):
                cells = self._focal_error(predictions[stack][scale].float(), target, foreground) * cell_weights
                stack_terms.append(scale_weight * stack_weight * cells.sum((1, 2, 3)))  # (N,)
            terms.append(torch.stack(stack_terms, 1))  # (N, stacks)
        return torch.stack(terms, 2)

    def _check(self, predictions: Predictions, target: Tensor) -> None:
        if self.stack_weights and len(self.stack_weights) != len(predictions):
            raise ValueError(f"{len(self.stack_weights)} stack weights for {len(predictions)} stacks")
        if any(len(scales) != len(self.scale_weights) for scales in predictions):
            raise ValueError(f"every stack must predict {len(self.scale_weights)} scales")
        if any(scales[0].shape != target.shape for scales in predictions):
            raise ValueError(f"predictions {tuple(predictions[0][0].shape)} do not fit target {tuple(target.shape)}")

    def _focal_error(self, prediction: Tensor, target: Tensor, foreground: Tensor) -> Tensor:
        """(N, C, h, w): squared error times the focal factor |1 - q|^gamma."""
        error = prediction - target
        if self.gamma == 0:
            return error**2
        # 1 - q up to its sign: the distance of the prediction to 1 on foreground, to 0 elsewhere.
        distance = torch.where(foreground, 1 - prediction, prediction)
        if self.gamma == 2:
            return (error * distance) ** 2
        return error**2 * distance.abs() ** self.gamma


def _normalized(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def _shrink_mask(mask_miss: Tensor, target: Tensor) -> Tensor:
    """(N, 1, h, w) mask at the resolution of ``target``; values below 0.5 become 0."""
    small = F.interpolate(mask_miss, size=target.shape[2:], mode="bilinear", align_corners=False)
    return torch.where(small < 0.5, torch.zeros_like(small), small)
