"""One guarded optimizer step: forward, vote, backward, clip, update, or nothing at all."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from posenet.data.dataset import Batch
from posenet.devices.runtime import Runtime
from posenet.training.freezing import batch_norms
from posenet.training.loss_guard import LossGuard


@dataclass(frozen=True)
class Outcome:
    """What became of one step.

    Attributes:
        loss: mean loss over its batches and all processes; None where the step was dropped.
        bad_value: this process's loss, or the gradient norm, where the guard must judge the step; None otherwise.
    """

    loss: float | None = None
    bad_value: float | None = None


class GuardedUpdate:
    """Applies one optimizer step, or drops it without a trace.

    A dropped step changes no weight, no optimizer state and no BatchNorm statistic; only the loss scale of fp16
    may have fallen.

    Args:
        module: the (wrapped) training step: a batch to one loss per image.
        max_grad_norm: clip the norm of the true (unscaled, averaged) gradient to this; 0 is off.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
        guard: LossGuard,
        runtime: Runtime,
        max_grad_norm: float = 0.0,
    ) -> None:
        self.module, self.optimizer, self.scaler, self.guard = module, optimizer, scaler, guard
        self.runtime, self.max_grad_norm = runtime, max_grad_norm
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.statistics: list[Tensor] = [b for norm in batch_norms(module) for b in norm.buffers(recurse=False)]
        # Made once: a clone for every buffer and step would be some thousand small calls to the device.
        self.before = [b.clone() for b in self.statistics]

    def __call__(self, batches: Sequence[Batch]) -> Outcome:
        """Train on the mean gradient of the batches."""
        if self.statistics:
            torch._foreach_copy_(self.before, self.statistics)
        outcome = self._attempt(batches)
        if outcome.loss is None and self.statistics:
            torch._foreach_copy_(self.statistics, self.before)
        self.optimizer.zero_grad(set_to_none=True)
        return outcome

    def _attempt(self, batches: Sequence[Batch]) -> Outcome:
        total = 0.0
        for i, batch in enumerate(batches, 1):
            # Only the step's last backward shares the gradient with the other processes.
            with self.runtime.no_gradient_sync(self.module) if i < len(batches) else contextlib.nullcontext():
                loss = self.module(*batch[:4]).mean()
                # The vote comes before backward, so that all processes skip the step or none does. It is the only
                # number that the host reads before the gradient's norm.
                summed, objections = self.runtime.all_reduce_sum(
                    torch.stack([loss.detach(), self.guard.objects(loss)])
                ).tolist()
                if objections:
                    if 1 < i == len(batches) and self.runtime.world_size > 1:
                        # What this forward has announced must come, or the next step's first backward, which is to
                        # stay on its process, is shared in its place: the same gradient, but rounded differently.
                        loss.backward()
                    return Outcome(bad_value=loss.item())
                total += summed / self.runtime.world_size
                self.scaler.scale(loss / len(batches)).backward()
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()  # the same on all processes, as the gradient is: no vote is needed
        if math.isfinite(norm):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return Outcome(loss=total / len(batches))
        scale = self.scaler.get_scale()
        self.scaler.update()
        # A loss scale that was too large is fp16's everyday business: it has just been lowered.
        too_large_scale = self.scaler.is_enabled() and self.scaler.get_scale() < scale and scale > 1
        return Outcome(bad_value=None if too_large_scale else norm)

    def _clip(self) -> float:
        """The gradient's norm before clipping; not finite where any gradient is not."""
        if self.max_grad_norm:
            return clip_grad_norm_(self.parameters, self.max_grad_norm).item()
        return get_total_norm([p.grad for p in self.parameters if p.grad is not None]).item()
