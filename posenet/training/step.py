"""One training step, from batches to new weights.

``ModelWithLoss`` renders the targets, and computes network and loss: one module, which DataParallel and
DistributedDataParallel wrap. ``TrainStep`` is the step: forward, backward, clip, compare losses and gradient with the
limits of ``bad_steps.py``, update or skip.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from posenet.data.dataset import Batch
from posenet.data.targets import TargetRenderer
from posenet.devices.precision import Amp, autocast, select_training_mode
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.model.layers import images_to_input
from posenet.model.posenet import PoseNet
from posenet.settings import Config
from posenet.training.bad_steps import BadStepPolicy, BadValue
from posenet.training.loss import Loss, make_loss
from posenet.training.optimizer import batch_norm_layers

if TYPE_CHECKING:
    from posenet.training.teacher import Teacher


class ModelWithLoss(nn.Module):
    """Renders the targets of a uint8 batch and computes the loss of every image, on the device of the batch.

    Only the network runs in the precision ``amp``; targets and loss are float32. In training mode, the maps of a
    ``teacher`` join the targets.
    """

    def __init__(
        self,
        network: PoseNet,
        renderer: TargetRenderer,
        loss: Loss,
        amp: Amp,
        teacher: "Teacher | None" = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.renderer = renderer
        self.loss = loss
        self.amp = amp
        self.teacher = teacher
        self.compiled: Callable[..., Tensor] | None = None

    def compile(self) -> None:
        """Make ``torch.compile`` compile targets, network and loss in training.

        Evaluation would be a second graph, which takes longer to compile than it saves.
        """
        self.compiled = torch.compile(self._losses)

    def forward(
        self,
        images: Tensor,
        joints: Tensor,
        person_mask: Tensor,
        mask_miss: Tensor,
        supervised: Tensor | None = None,
    ) -> Tensor:
        """The loss of every image.

        Args:
            images: (N, H, W, 3) BGR uint8.
            joints: (N, P, K, 3) float32: x and y in network-input pixels, and visibility.
            person_mask: (N, H/4, W/4) uint8, 255 where people are.
            mask_miss: (N, H/4, W/4) uint8, 255 where the loss supervises.
            supervised: (N, C) uint8, 1 for the channels that the loss supervises; None means all.

        Returns:
            (N,) float32. ``ConfigError`` if a loss of other code returns something else.
        """
        losses = self._losses if self.compiled is None or not self.training else self.compiled
        return losses(images, joints, person_mask, mask_miss, supervised)

    def _losses(
        self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor, supervised: Tensor | None
    ) -> Tensor:
        target = self.renderer(joints, person_mask.float() / 255)  # (N, C, H/4, W/4)
        mask = mask_miss[:, None].float() / 255  # (N, 1, H/4, W/4)
        inputs = images_to_input(images, self.network.channels_last)
        if self.teacher is not None and self.training:
            target = self.teacher.teach(inputs, target, mask, supervised)
            mask = torch.ones_like(mask)
        elif supervised is not None:
            mask = mask * supervised[:, :, None, None]  # (N, C, H/4, W/4)
        with autocast(images.device, self.amp):
            predictions = self.network(inputs)
        losses = self.loss(predictions, target, mask)
        if not isinstance(losses, Tensor) or losses.shape != images.shape[:1]:
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise ConfigError(
                f"the loss {name} returns {found}; let it return {len(images)} values, one for each image"
            )
        return losses.float()


def build_model(config: Config, network: PoseNet, device: torch.device) -> ModelWithLoss:
    """The network with targets and loss, moved to a device in the configured precision and memory format."""
    amp, network.channels_last = select_training_mode(device, config.train)
    layout = torch.channels_last if network.channels_last else torch.contiguous_format
    network.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    renderer, loss, teacher = TargetRenderer.from_config(config), make_loss(config), None
    if config.train.teacher:
        from posenet.training.teacher import load_teacher  # a part of the package that may be left out

        teacher = load_teacher(config, device)
    model = ModelWithLoss(network, renderer, loss, amp, teacher)
    if config.parallel.compile:
        model.compile()
    return model


def compute_losses(model: nn.Module, batch: Batch, runtime: Runtime) -> Tensor:
    """What a wrapped ``ModelWithLoss`` returns for a batch in host memory."""
    batch = runtime.to_device(batch)
    losses: Tensor = model(batch.images, batch.joints, batch.person_mask, batch.mask_miss, batch.supervised)
    return losses


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step."""

    loss: float | None = None  # mean loss over its batches and all processes; None if the step was skipped
    bad: BadValue | None = None
    """Why the step was skipped: a bad gradient norm, or this rank's loss of the first batch whose loss was bad on some
    rank, here or elsewhere. None if the step was not skipped, or only because the loss scale of fp16 was too large."""


@dataclass(eq=False)
class TrainStep:
    """One optimizer step on the mean gradient of one or several batches.

    A step with a bad loss or gradient is skipped: weights, optimizer state and BatchNorm statistics do not change. Only
    the loss scale of fp16 may be lowered. The host waits for the device once in each step, to read the losses and the
    gradient norm together; in fp16 an optimizer without fused kernels waits a second time.
    """

    model: nn.Module  # a ``ModelWithLoss``, wrapped by the runtime
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    bad_steps: BadStepPolicy
    runtime: Runtime
    max_grad_norm: float  # the norm of the true (unscaled, averaged) gradient is clipped to it, unless it is 0

    def __post_init__(self) -> None:
        self.gradient_norms: list[float] = []  # before clipping, of the steps that were not skipped since the last log
        self.batch_norm = BatchNormStatistics(self.model)
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        statistics = self.batch_norm.read()
        result = self._step(batches)
        if result.loss is None:
            self.batch_norm.write(statistics)
        self.optimizer.zero_grad()
        return result

    def _step(self, batches: Sequence[Batch]) -> StepResult:
        # Forward and backward. Only the last backward pass averages the gradients over the processes.
        losses = []
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with contextlib.nullcontext() if is_last else self.runtime.no_gradient_sync(self.model):
                loss = compute_losses(self.model, batch, self.runtime).mean()
                self.scaler.scale(loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self._parameters, self.max_grad_norm or math.inf)

        # Vote on the losses and the norm, so that either all ranks skip the step or none does. All numbers are read at
        # once, because the device is idle while the host waits for them.
        guard = self.bad_steps
        values = torch.stack([*losses, norm])  # (batches + 1,)
        is_bad = ~(values.isfinite() & (values <= guard.loss.limit))  # of the losses; the norm has another limit
        own = torch.stack([values, is_bad.to(values.dtype)])
        numbers = torch.stack([self.runtime.all_reduce_sum(own), own]).tolist()  # (2, 2, batches + 1)
        (sums, bad_counts), (own_values, own_is_bad) = numbers
        *mean_losses, gradient_norm = (value / self.runtime.world_size for value in sums)
        mean_loss = sum(mean_losses) / len(batches)

        # Skip or update.
        for bad_count, value, is_own in zip(bad_counts[:-1], own_values, own_is_bad):
            if bad_count:
                self.scaler.update(self.scaler.get_scale())  # the loss says nothing about the loss scale of fp16
                return StepResult(bad=BadValue("loss", value, guard.loss.limit, bool(is_own)))
        bad_gradient = BadValue("gradient norm", gradient_norm, guard.relative_gradient.limit * mean_loss)
        if not math.isfinite(gradient_norm):
            # That the loss scale of fp16 was too large is normal, and no sign of an exploding loss.
            scale = self.scaler.get_scale()
            self.scaler.update()
            was_too_large = scale > 1 and self.scaler.get_scale() < scale
            return StepResult(bad=None if was_too_large else bad_gradient)
        if mean_loss > 0 and gradient_norm > bad_gradient.limit:
            self.scaler.update(self.scaler.get_scale())
            return StepResult(bad=bad_gradient)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.gradient_norms.append(gradient_norm)
        guard.record_good(mean_loss, gradient_norm)
        return StepResult(loss=mean_loss)


class BatchNormStatistics:
    """The statistics of all BatchNorm layers of a model: running mean, running variance and number of batches.

    They are read as one tensor per dtype, because a network can have more than a thousand of them. Views of them are
    made once, because every step reads them; so the model must be on its device already.
    """

    def __init__(self, model: nn.Module) -> None:
        buffers = [buffer.view(-1) for layer in batch_norm_layers(model) for buffer in layer.buffers(recurse=False)]
        dtypes = dict.fromkeys(buffer.dtype for buffer in buffers)
        self._groups = [[buffer for buffer in buffers if buffer.dtype == dtype] for dtype in dtypes]

    def read(self) -> list[Tensor]:
        """A copy of the statistics: for each dtype a tensor of one dimension."""
        return [torch.cat(buffers) for buffers in self._groups]

    def write(self, statistics: Sequence[Tensor]) -> None:
        """Overwrite the statistics with those that ``read`` has returned."""
        for buffers, values in zip(self._groups, statistics):
            parts = values.split_with_sizes([buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts):
                buffer.copy_(part)
