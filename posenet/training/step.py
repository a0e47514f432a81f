"""One training step, from batches to new weights.

``ModelWithLoss`` renders the targets, and computes network and loss: one module, which DataParallel and
DistributedDataParallel wrap. ``TrainStep`` is the step: forward, backward, clip, look at losses and gradient, update or
skip. ``bad_steps.py`` says which losses are bad.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from posenet.data.dataset import Batch
from posenet.data.targets import TargetRenderer
from posenet.devices.parallel import Runtime
from posenet.devices.precision import Amp, autocast, select_training_mode
from posenet.errors import ConfigError
from posenet.model.layers import images_to_input
from posenet.model.posenet import PoseNet
from posenet.settings import Config
from posenet.training.bad_steps import BadStepPolicy, BadValue
from posenet.training.loss import Loss, make_loss, sum_per_image
from posenet.training.optimizer import batch_norm_layers
from posenet.training.teacher import Teacher


class ModelWithLoss(nn.Module):
    """Renders the targets of a uint8 batch and computes the loss of every image, on the device of the batch.

    Only the network runs in the precision ``amp``; targets and loss are float32. ``channels_last`` is the memory layout
    of the network. In training mode, the maps of a ``teacher`` join the targets.
    """

    def __init__(
        self,
        network: PoseNet,
        renderer: TargetRenderer,
        loss: Loss,
        amp: Amp,
        channels_last: bool,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.renderer = renderer
        self.loss = loss
        self.amp = amp
        self.channels_last = channels_last
        self.teacher = teacher
        self._compiled: Callable[..., Tensor] | None = None

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def compile(self) -> None:
        """Make ``torch.compile`` compile targets, network and loss in training.

        Evaluation would be a second graph, which takes longer to compile than it saves.
        """
        self._compiled = torch.compile(self._loss_terms)

    def forward(
        self,
        images: Tensor,
        joints: Tensor,
        person_mask: Tensor,
        mask_miss: Tensor,
        supervised: Tensor | None = None,
    ) -> Tensor:
        """What the loss returns.

        Args:
            images: (N, H, W, 3) BGR uint8.
            joints: (N, P, K, 3) float32: x and y in network-input pixels, and visibility.
            person_mask: (N, H/4, W/4) uint8, 255 where people are.
            mask_miss: (N, H/4, W/4) uint8, 255 where the loss supervises.
            supervised: (N, C) uint8, 1 for the channels that the loss supervises; None means all.

        Returns:
            (N, ...) float32; with ``FocalL2Loss`` (N, stacks, scales). ``ConfigError`` if a loss of other code returns
            something else.
        """
        if self._compiled is None or not self.training:
            return self._loss_terms(images, joints, person_mask, mask_miss, supervised)
        if self.teacher is not None:
            self.teacher.network_on(images.device)  # a graph cannot contain the copying
        return self._compiled(images, joints, person_mask, mask_miss, supervised)

    def _loss_terms(
        self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor, supervised: Tensor | None
    ) -> Tensor:
        target = self.renderer(joints, person_mask.float() / 255)  # (N, C, H/4, W/4)
        mask = mask_miss[:, None].float() / 255  # (N, 1, H/4, W/4)
        inputs = images_to_input(images, self.channels_last)
        if self.teacher is not None and self.training:
            target = self.teacher.teach(inputs, target, mask, supervised)
            mask = torch.ones_like(mask)
        elif supervised is not None:
            mask = mask * supervised[:, :, None, None]  # (N, C, H/4, W/4)
        with autocast(images.device, self.amp):
            predictions = self.network(inputs)
        terms = self.loss(predictions, target, mask)
        if not isinstance(terms, Tensor) or terms.shape[:1] != images.shape[:1]:
            found = f"the shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else f"a {type(terms).__name__}"
            name, count = getattr(self.loss, "__name__", type(self.loss).__name__), len(images)
            raise ConfigError(
                f"the loss {name} returns {found} for {count} images; let it return a tensor of shape ({count},), a "
                f"value for each image, or ({count}, ...), terms of which it is the sum"
            )
        return terms.float()


def build_model(config: Config, network: PoseNet, device: torch.device) -> ModelWithLoss:
    """The network with targets and loss, moved to a device in the configured precision and memory format."""
    mode = select_training_mode(device, config.train)
    network.channels_last = mode.channels_last
    layout = torch.channels_last if mode.channels_last else torch.contiguous_format
    network.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    model = ModelWithLoss(network, TargetRenderer.from_config(config), make_loss(config), mode.amp, mode.channels_last)
    if config.parallel.compile:
        model.compile()
    return model


def compute_terms(model: nn.Module, batch: Batch, runtime: Runtime) -> Tensor:
    """What a wrapped ``ModelWithLoss`` returns for a batch in host memory."""
    batch = runtime.to_device(batch)
    terms: Tensor = model(batch.images, batch.joints, batch.person_mask, batch.mask_miss, batch.supervised)
    return terms


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step."""

    loss: float | None = None  # mean loss over its batches and all processes; None if the step was skipped
    bad: BadValue | None = None
    """Why the step was skipped: a bad gradient norm, or this rank's loss of the first batch whose loss was bad on some
    rank, here or elsewhere. None if the step was not skipped, or only because the loss scale of fp16 was too large."""


class MeanMeter:
    """The mean of numbers or tensors since the last reading. ``add`` does not wait for a device."""

    def __init__(self) -> None:
        self._sum: Any = 0
        self._count = 0

    def add(self, total: float | Tensor, count: int = 1) -> None:
        """Add the sum of ``count`` values."""
        self._sum = self._sum + total
        self._count += count

    def read(self) -> Any:
        """Return the mean with five digits, a tensor as lists, and restart; None without values, or if not finite."""
        mean = torch.as_tensor(self._sum).cpu().double() / self._count
        self._sum = self._count = 0
        # Five digits are enough, and keep the log small.
        return np.vectorize(lambda value: float(f"{value:.5g}"))(mean).tolist() if mean.isfinite().all() else None


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
        self.terms = MeanMeter()
        """Of the images of steps that were not skipped: what the loss returns, (stacks, scales) for ``FocalL2Loss``."""
        self.gradient_norm = MeanMeter()  # of these steps, before clipping
        self._batch_norm = BatchNormStatistics(self.model)
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def __call__(self, batches: Sequence[Batch]) -> StepResult:
        statistics = self._batch_norm.read()
        result = self._step(batches)
        if result.loss is None:
            self._batch_norm.write(statistics)
        self.optimizer.zero_grad()
        return result

    def _step(self, batches: Sequence[Batch]) -> StepResult:
        # Forward and backward. Only the last backward pass averages the gradients over the processes.
        losses = []
        terms = []
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with contextlib.nullcontext() if is_last else self.runtime.no_gradient_sync(self.model):
                terms_of_images = compute_terms(self.model, batch, self.runtime)  # (N, ...)
                loss = sum_per_image(terms_of_images).mean()
                self.scaler.scale(loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            terms.append((terms_of_images.detach().sum(0), len(terms_of_images)))
        self.scaler.unscale_(self.optimizer)
        if self.max_grad_norm:
            norm = clip_grad_norm_(self._parameters, self.max_grad_norm)
        else:
            norm = get_total_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])

        # Vote on the losses and the norm, so that either all ranks skip the step or none does. All numbers are read at
        # once, because the device is idle while the host waits for them.
        guard = self.bad_steps
        own = torch.stack([*losses, norm])  # (batches + 1,)
        is_bad = ~(own.isfinite() & (own <= guard.loss.limit))
        votes = self.runtime.all_reduce_sum(torch.stack([own, is_bad.to(own.dtype)]))  # (2, batches + 1)
        (*loss_sums, norm_sum), (*bad_losses, _) = votes.tolist()
        gradient_norm = norm_sum / self.runtime.world_size
        mean_loss = sum(loss_sum / self.runtime.world_size for loss_sum in loss_sums) / len(batches)

        # Skip or update.
        for number, bad in enumerate(bad_losses):
            if bad:
                self._keep_loss_scale()
                value, is_own = torch.stack([own[number], is_bad[number].to(own.dtype)]).tolist()
                return StepResult(bad=guard.loss.explain("loss", value, is_own=bool(is_own)))
        gradient = guard.relative_gradient
        if not math.isfinite(gradient_norm):
            # That the loss scale of fp16 was too large is normal, and no sign of an exploding loss.
            scale = self.scaler.get_scale()
            self.scaler.update()
            was_too_large = scale > 1 and self.scaler.get_scale() < scale
            bad = None if was_too_large else gradient.explain("gradient norm", gradient_norm, mean_loss)
            return StepResult(bad=bad)
        if mean_loss > 0 and gradient_norm > gradient.limit * mean_loss:
            self._keep_loss_scale()
            return StepResult(bad=gradient.explain("gradient norm", gradient_norm, mean_loss))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for total, count in terms:
            self.terms.add(total, count)
        self.gradient_norm.add(gradient_norm)
        guard.record_good(mean_loss, gradient_norm)
        return StepResult(loss=mean_loss)

    def _keep_loss_scale(self) -> None:
        """End a step whose values are bad: they say nothing about the loss scale of fp16."""
        self.scaler.update(self.scaler.get_scale())


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
