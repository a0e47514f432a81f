"""One optimizer step, which queues all its work on the device and waits for none of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from posenet.data.loader import Batch
from posenet.devices.host_copy import HostCopy
from posenet.devices.runtime import Runtime
from posenet.training.batch_norm import BatchNormSnapshot
from posenet.training.conditional_update import step_unless, update_scale_unless
from posenet.training.data_set_losses import DataSetLosses
from posenet.training.loss_guard import LossGuard


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step."""

    loss: float | None = None
    """Mean loss over its batches and all processes; None if the step was skipped."""
    bad_value: float | None = None
    """This rank's loss, good or bad, or the gradient norm, if the step was skipped on all ranks for a bad one; None if
    the step was not skipped, or only because the loss scale of fp16 was too large."""


class PendingResult:
    """The result of a step that the device may still be computing.

    Args:
        loss_sums: (B,) losses of the step's batches, summed over the ranks.
        bad_votes: (B,) number of ranks on which the loss of the batch is bad.
        losses: (B,) this rank's losses.
        gradient_norm: () norm before clipping.
        skipped: () whether the step was skipped.
        scale_was_lowered: () whether the step was skipped because the loss scale was too large.
        world_size: number of ranks.
    """

    def __init__(
        self,
        loss_sums: Tensor,
        bad_votes: Tensor,
        losses: Tensor,
        gradient_norm: Tensor,
        skipped: Tensor,
        scale_was_lowered: Tensor,
        world_size: int,
    ) -> None:
        scalars = [value.to(losses.dtype) for value in (gradient_norm, skipped, scale_was_lowered)]
        self._values = HostCopy(torch.cat([loss_sums, bad_votes, losses, torch.stack(scalars)]))
        self._num_batches = len(losses)
        self._world_size = world_size

    def read(self) -> StepResult:
        """The result, after waiting for the step. All steps that were queued later may still be in progress."""
        values: list[float] = self._values.read().tolist()
        count = self._num_batches
        loss_sums = values[:count]
        bad_votes = values[count : 2 * count]
        losses = values[2 * count : 3 * count]
        gradient_norm, skipped, scale_was_lowered = values[3 * count :]
        if not skipped:
            return StepResult(loss=sum(loss_sum / self._world_size for loss_sum in loss_sums) / count)
        for votes, loss in zip(bad_votes, losses):
            if votes:
                return StepResult(bad_value=loss)
        return StepResult(bad_value=None if scale_was_lowered else gradient_norm)


class TrainStep:
    """One optimizer step: forward, backward, vote, clip, update.

    A step with a bad loss or gradient is skipped: weights, optimizer state and BatchNorm statistics do not change. Only
    the loss scale of fp16 may be lowered. The device decides whether to skip, and the host never waits for it, so that
    it can queue the next step meanwhile.

    Args:
        model: wrapped by the runtime; returns one loss per image of a batch.
        max_grad_norm: clip the norm of the true (unscaled, averaged) gradient to this value; 0 does not clip.
        set_losses: records the losses of several data sets; None if there is only one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
        guard: LossGuard,
        runtime: Runtime,
        max_grad_norm: float,
        set_losses: DataSetLosses | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.guard = guard
        self.runtime = runtime
        self.max_grad_norm = max_grad_norm
        self.set_losses = set_losses
        self._batch_norm = BatchNormSnapshot(model)
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def __call__(self, batches: Sequence[Batch]) -> PendingResult:
        """Step on the mean gradient of the batches.

        If another process ends meanwhile, weights and BatchNorm statistics are those before the step.
        """
        self._batch_norm.save()
        try:
            return self._step(batches)
        except RuntimeError as error:
            if self.runtime.has_lost_contact(error):
                self._batch_norm.restore()
            raise

    def _step(self, batches: Sequence[Batch]) -> PendingResult:
        # Forward and backward. The gradient of a bad loss is computed too, and thrown away below.
        batch_losses = []
        for number, batch in enumerate(batches, start=1):
            batch_losses.append(self._accumulate_gradient(batch, len(batches), is_last=number == len(batches)))
        losses = torch.stack(batch_losses)  # (B,)
        # Vote, so that either all ranks skip the step or none does.
        votes = self.guard.is_bad_loss(losses)
        loss_sums, bad_votes = self.runtime.all_reduce_sum(torch.stack([losses, votes]))  # (B,) each
        is_bad_loss = bad_votes.sum() > 0
        # Clip. The gradient and its norm are the same on all ranks, so no vote is needed.
        self.scaler.unscale_(self.optimizer)
        gradient_norm = self._clip_gradient()
        skip = is_bad_loss | ~gradient_norm.isfinite()
        # Update.
        step_unless(skip, self.optimizer)
        scale_was_lowered = update_scale_unless(is_bad_loss, self.scaler)
        self._batch_norm.restore_if(skip)
        self.optimizer.zero_grad(set_to_none=True)
        return PendingResult(
            loss_sums, bad_votes, losses, gradient_norm, skip, scale_was_lowered, self.runtime.world_size
        )

    def _accumulate_gradient(self, batch: Batch, num_batches: int, is_last: bool) -> Tensor:
        """Add the gradient of a batch, and return the mean loss of its images, a tensor of shape ()."""
        # Only the last backward pass of a step averages the gradients over the processes.
        with contextlib.nullcontext() if is_last else self.runtime.no_gradient_sync(self.model):
            # (N,): one loss per image.
            losses = self.model(batch.images, batch.joints, batch.person_mask, batch.mask_miss, batch.supervised)
            if self.set_losses is not None and batch.set_indices is not None:
                self.set_losses.add(losses, batch.set_indices)
            loss = losses.mean()
            self.scaler.scale(loss / num_batches).backward()
        return cast(Tensor, loss.detach())

    def _clip_gradient(self) -> Tensor:
        """Clip the gradient if configured. Return its original norm, which is not finite if any gradient is not."""
        norm: Tensor
        if self.max_grad_norm:
            norm = clip_grad_norm_(self._parameters, self.max_grad_norm)
        else:
            norm = get_total_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])
        return norm
