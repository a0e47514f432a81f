"""The focal L2 loss over all stacks, scales and tasks: one value per image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.settings import Config
from posenet.skeleton import COCO, Skeleton

Predictions = Sequence[Sequence[Tensor]]
"""predictions[stack][scale]: (N, C, h >> scale, w >> scale)."""


class TermMeter:
    """Mean of a loss's terms over all images since the last reading; adding to it never waits for the device.

    The copies of a module that DataParallel makes share one.
    """

    def __init__(self) -> None:
        self._counted: dict[torch.device, tuple[Tensor, int]] = {}

    def add(self, terms: Tensor) -> None:
        """Count (N, stacks, scales) terms; another number of stacks begins anew."""
        total, images = terms.detach().sum(0), len(terms)
        before = self._counted.get(terms.device)
        if before is not None and before[0].shape == total.shape:
            total, images = before[0].add_(total), before[1] + images
        self._counted[terms.device] = total, images

    def read(self) -> list[list[float]] | None:
        """By stack and scale, and begin anew; None where there was nothing, or nothing finite."""
        pluralize, self._counted = self._counted.values(), {}
        if not pluralize:
            return None
        mean = sum(total.cpu() for total, _ in pluralize) / sum(images for _, images in pluralize)
        # Five digits: the log has a line of these every few steps.
        return [[float(f"{value:.5g}") for value in row] for row in mean.tolist()] if mean.isfinite().all() else None


class FocalL2Loss(nn.Module):
    """Squared error, weighted by how far a cell still is from its answer (Simple Pose, section 3.4).

    With prediction s and target t, q = s where t is foreground, else 1 - s, and the cell's loss is
    (s - t)^2 |1 - q|^gamma. Cells and channels are summed, stacks and scales averaged by weight.

    Args:
        gamma: focal exponent; 0 is plain L2.
        scale_weights: five weights, fine to coarse; they are divided by their sum.
        stack_weights: one weight per stack, divided by their sum; empty means equal.
        part_weight, keypoint_weight, mask_weight, foreground_weight: weights of the channel groups.
        positive_threshold: target values from here up are foreground.

    Attributes:
        meter: in training mode counts what the stacks and scales add to the loss.
    """

    def __init__(
        self,
        gamma: float = 2.0,
        scale_weights: Sequence[float] = (0.1, 0.2, 0.4, 1.6, 6.4),
        stack_weights: Sequence[float] = (),
        part_weight: float = 1.0,
        keypoint_weight: float = 3.0,
        mask_weight: float = 0.1,
        foreground_weight: float = 1.0,
        positive_threshold: float = 0.01,
        skeleton: Skeleton = COCO,
    ) -> None:
        super().__init__()
        self.gamma, self.positive_threshold, self.meter = gamma, positive_threshold, TermMeter()
        self.scale_weights = [w / sum(scale_weights) for w in scale_weights]
        self.stack_weights = [w / sum(stack_weights) for w in stack_weights]
        weights = (
            [part_weight] * skeleton.num_parts
            + [keypoint_weight] * skeleton.num_keypoints
            + [mask_weight, foreground_weight]
        )
        self.register_buffer("channel_weights", torch.tensor(weights).view(1, -1, 1, 1), persistent=False)

    @classmethod
    def from_config(cls, config: Config) -> FocalL2Loss:
        c = config.loss
        return cls(
            c.gamma,
            c.scale_weights,
            c.stack_weights,
            c.part_weight,
            c.keypoint_weight,
            c.mask_weight,
            c.foreground_weight,
            c.positive_threshold,
            config.model.skeleton,
        )

    def forward(self, predictions: Predictions, target: Tensor, mask_miss: Tensor) -> Tensor:
        """The loss of every image: the sum of its ``terms``.

        Returns:
            (N,) float32, so that a mean over images is the same on one device and on many.
        """
        terms = self.terms(predictions, target, mask_miss)
        if self.training:
            self.meter.add(terms)
        return terms.sum((1, 2))

    def terms(self, predictions: Predictions, target: Tensor, mask_miss: Tensor) -> Tensor:
        """What every stack and scale adds to the loss of every image, weights included.

        Args:
            predictions: predictions[stack][scale] of shape (N, C, h >> scale, w >> scale).
            target: (N, C, h, w) at the finest scale, in [0, 1].
            mask_miss: (N, 1, h, w); 1 supervises a cell, 0 ignores it.

        Returns:
            (N, stacks, scales) float32.

        Raises:
            ValueError: the number of stacks or scales does not fit the weights, or shapes disagree.
        """
        stacks = len(predictions)
        if self.stack_weights and len(self.stack_weights) != stacks:
            raise ValueError(f"{len(self.stack_weights)} stack weights for {stacks} stacks")
        if any(len(scales) != len(self.scale_weights) for scales in predictions):
            raise ValueError(f"every stack must predict {len(self.scale_weights)} scales")
        if any(scales[0].shape != target.shape for scales in predictions):
            raise ValueError(f"predictions {tuple(predictions[0][0].shape)} do not fit target {tuple(target.shape)}")
        target, mask_miss = target.float(), mask_miss.float()
        terms: list[Tensor] = []  # by scale: (N, stacks)
        for scale, scale_weight in enumerate(self.scale_weights):
            if scale:
                target = F.avg_pool2d(target, 2)
            weight = self.channel_weights * self._shrink(mask_miss, target.shape[2:])
            foreground = target >= self.positive_threshold
            sums = []
            for stack, stack_weight in enumerate(self.stack_weights or [1 / stacks] * stacks):
                loss = self._cells(predictions[stack][scale].float(), target, foreground) * weight
                sums.append(scale_weight * stack_weight * loss.sum((1, 2, 3)))
            terms.append(torch.stack(sums, 1))
        return torch.stack(terms, 2)

    def _cells(self, prediction: Tensor, target: Tensor, foreground: Tensor) -> Tensor:
        error = prediction - target
        if self.gamma == 0:
            return error**2
        # 1 - q but for its sign: the distance to 1 on foreground, to 0 elsewhere.
        difficulty = torch.where(foreground, 1 - prediction, prediction)
        if self.gamma == 2:
            return (error * difficulty) ** 2
        return error**2 * difficulty.abs() ** self.gamma

    @staticmethod
    def _shrink(mask_miss: Tensor, size: Sequence[int]) -> Tensor:
        small = F.interpolate(mask_miss, size=tuple(size), mode="bilinear", align_corners=False)
        return torch.where(small < 0.5, torch.zeros_like(small), small)
