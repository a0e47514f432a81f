"""The loss of an experiment: the focal L2 loss over all stacks, scales and channels, or one of the user's own."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.extensions import load_extension
from posenet.settings import Config, LossConfig
from posenet.skeleton import Skeleton

SCALE_WEIGHTS = 0.1, 0.2, 0.4, 1.6, 6.4
"""Weights of the scales, fine to coarse, as published: a coarser scale has a quarter of the cells."""
PART_WEIGHT = 1.0  # of the body-part channels
KEYPOINT_WEIGHT = 3.0  # as published: the foreground of keypoints is smaller than that of body parts
MASK_WEIGHT = 0.1  # the person mask only helps the features: it covers many cells, and the decoder does not use it
FOREGROUND_WEIGHT = 1.0  # of the keypoint foreground
POSITIVE_THRESHOLD = 0.01  # target values from this on count as foreground in the focal factor

Predictions = Sequence[Sequence[Tensor]]  # predictions[stack][scale]: (N, C, h >> scale, w >> scale)
Loss = Callable[[Predictions, Tensor, Tensor], Tensor]
"""A loss as training calls it: see ``FocalL2Loss.forward``."""


def make_loss(config: Config) -> Loss:
    """The loss that ``loss.function`` names, else the focal L2 loss.

    The name is that of a ``Loss``, which is taken as it is; or of a class of such objects, of which
    ``from_config(config)`` makes one, or ``Class(config)`` where it has no such method. The predictions have the
    precision of the network. ``ConfigError`` if the name cannot be imported, or if what it makes cannot be called or
    has parameters.
    """
    name = config.loss.function
    if not name:
        return FocalL2Loss.from_config(config)
    found = load_extension("loss.function", name)
    loss: Loss = getattr(found, "from_config", found)(config) if isinstance(found, type) else found
    if not callable(loss):
        raise ConfigError(f"loss.function={name} has the type {type(loss).__name__}; give a class or a function")
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ConfigError(f"loss.function={name} has parameters, which nothing trains; make them buffers")
    return loss


class FocalL2Loss(nn.Module):
    """Squared error with a larger weight for cells that are far from their target (Simple Pose, section 3.4).

    For a prediction s and a target t, let q = s where t is foreground (t >= ``POSITIVE_THRESHOLD``) and q = 1 - s
    elsewhere. The loss of one cell is ``(s - t)^2 * |1 - q|^gamma * mask_miss * channel_weight``, with a share of less
    than half of ``mask_miss`` as 0. It is summed over channels and cells, averaged over stacks and averaged over
    scales; both averages are weighted.

    The formula of a cell is in ``_cell_losses`` alone. The rest puts many cells into few operations.
    """

    channel_weights: Tensor
    scale_weights: Tensor
    stack_weights: Tensor | None

    def __init__(self, settings: LossConfig, skeleton: Skeleton) -> None:
        super().__init__()
        self.gamma = settings.gamma
        weights = (
            [PART_WEIGHT] * skeleton.num_parts
            + [KEYPOINT_WEIGHT] * skeleton.num_keypoints
            + [MASK_WEIGHT, FOREGROUND_WEIGHT]
        )
        self.register_buffer("channel_weights", torch.tensor(weights).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("scale_weights", _normalized(SCALE_WEIGHTS), persistent=False)  # (scales,)
        # (stacks,); None for equal weights
        stack_weights = _normalized(settings.stack_weights) if settings.stack_weights else None
        self.register_buffer("stack_weights", stack_weights, persistent=False)

    @classmethod
    def from_config(cls, config: Config) -> "FocalL2Loss":
        return cls(config.loss, config.model.skeleton)

    def forward(self, predictions: Predictions, target: Tensor, mask_miss: Tensor) -> Tensor:
        """The loss of every image.

        Args:
            predictions: predictions[stack][scale] of shape (N, C, h >> scale, w >> scale).
            target: (N, C, h, w) at the finest scale, in [0, 1].
            mask_miss: (N, 1, h, w), or (N, C, h, w) where it differs between channels; 1 where a cell is supervised, 0
                where it is ignored.

        Returns:
            (N,) float32.

        Raises:
            ConfigError: the predictions have other shapes, or their stacks another number than ``loss.stack_weights``.
        """
        targets, weights = self._targets_and_weights(predictions, target, mask_miss)
        # Maps become (N, L) in the order in which the predictions are in memory. So every operation on them reads and
        # writes memory in order, and the target is reordered once and not once for each stack.
        finest = predictions[0][0]
        is_channels_last = finest.is_contiguous(memory_format=torch.channels_last) and not finest.is_contiguous()
        order = (0, 2, 3, 1) if is_channels_last else (0, 1, 2, 3)

        def flatten(maps: Tensor) -> Tensor:
            return maps.permute(order).flatten(1)

        fine_target, fine_weight = flatten(targets[0]), flatten(weights[0])
        foreground = foreground_of(fine_target)
        fine_sums = [
            self._cell_losses(flatten(scales[0]), fine_target, foreground, fine_weight).sum(1) for scales in predictions
        ]  # (N,) each
        # The coarser scales have a third of the cells of the finest. One copy joins those of all stacks, because an
        # accelerator takes longer to start an operation than to compute a single one of them.
        lengths = [maps[0].numel() for maps in targets[1:]]
        coarse_target = torch.cat([flatten(maps) for maps in targets[1:]], 1)[:, None]  # (N, 1, L')
        coarse_weight = torch.cat([flatten(maps) for maps in weights[1:]], 1)[:, None]  # (N, 1, L')
        coarse = torch.cat([flatten(maps) for scales in predictions for maps in scales[1:]], 1)
        coarse = coarse.view(len(target), len(predictions), -1)  # (N, stacks, L')
        foreground = foreground_of(coarse_target)
        errors = self._cell_losses(coarse, coarse_target, foreground, coarse_weight)  # (N, stacks, L')
        coarse_sums = [scale_errors.sum(2) for scale_errors in torch.split(errors, lengths, 2)]  # (N, stacks) each

        sums = torch.stack([torch.stack(fine_sums, 1), *coarse_sums], 2)  # (N, stacks, scales)
        stack_weights = 1 / len(predictions) if self.stack_weights is None else self.stack_weights[:, None]
        return (sums * stack_weights * self.scale_weights).flatten(1).sum(1)

    def _targets_and_weights(
        self, predictions: Predictions, target: Tensor, mask_miss: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """For every scale, the target (N, C, h, w) and the weight of its cells, mask times channel weight."""
        targets = [target.float()]
        for _ in range(1, len(self.scale_weights)):
            targets.append(F.avg_pool2d(targets[-1], 2))
        count = len(predictions) if self.stack_weights is None else len(self.stack_weights)
        shapes = [tuple(maps.shape) for maps in targets]
        found = [[tuple(maps.shape) for maps in stack] for stack in predictions]
        if not found or found != [shapes] * count:
            raise ConfigError(f"forward of the network returns maps of {found}, not {shapes} for every stack")
        mask, weights = mask_miss.float(), []
        for maps in targets:
            size = maps.shape[2:]
            is_finest = mask.shape[2:] == size
            small = mask if is_finest else F.interpolate(mask, size=size, mode="bilinear", align_corners=False)
            weights.append(self.channel_weights * torch.where(small < 0.5, 0, small))
        return targets, weights

    def _cell_losses(self, prediction: Tensor, target: Tensor, foreground: Tensor, weight: Tensor) -> Tensor:
        """For every cell; ``foreground`` is 1 where the target is, and 0 elsewhere."""
        prediction = prediction.float()
        error = target - prediction
        if self.gamma == 0:
            return error**2 * weight
        # 1 - q up to its sign: the distance of the prediction to 1 on foreground, to 0 elsewhere.
        distance = foreground - prediction
        if self.gamma == 2:
            return (error * distance) ** 2 * weight
        return error**2 * distance.abs() ** self.gamma * weight


def foreground_of(target: Tensor) -> Tensor:
    """1 where a target counts as foreground, and 0 elsewhere, float32.

    The rest of a body part in a crowd does: it is the mean of ``POSITIVE_THRESHOLD`` over several people, which may be
    rounded down (``data.targets.PART_FLOOR``).
    """
    return (target >= POSITIVE_THRESHOLD * (1 - 1e-6)).float()


def _normalized(weights: Sequence[float]) -> Tensor:
    return torch.tensor([weight / sum(weights) for weight in weights])
