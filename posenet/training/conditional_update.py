"""Updates that a step makes or leaves out, decided on the device: the host does not wait for the decision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from posenet.training.optimizer import can_skip_on_device


def step_unless(skip: Tensor, optimizer: Optimizer) -> None:
    """Update the parameters, unless ``skip`` is true: then they and the optimizer's state stay as they are.

    Fused optimizers find out on the device. For others, and for all on a device whose fused optimizers cannot do it,
    the host waits for ``skip``.
    """
    if not can_skip_on_device(optimizer):
        if not skip:
            optimizer.step()
        return
    # The kernels read these attributes, which ``torch.amp.GradScaler`` sets as well.
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale  # type: ignore[attr-defined]
        del optimizer.found_inf  # type: ignore[attr-defined]


def update_scale_unless(skip: Tensor, scaler: torch.amp.GradScaler) -> Tensor:
    """Adapt the loss scale of fp16 to the gradients that ``scaler.unscale_`` has seen, unless ``skip`` is true.

    Returns:
        Whether the scale was too large and has been lowered, a boolean of shape (). That is normal in fp16 training and
        no sign of an exploding loss.
    """
    if not scaler.is_enabled():
        return torch.zeros_like(skip)
    scale, growth_tracker = scaler._scale, scaler._growth_tracker
    assert scale is not None and growth_tracker is not None  # ``scaler.scale`` has created them
    old_scale = scale.clone()
    old_growth_tracker = growth_tracker.clone()
    scaler.update()
    scale.copy_(torch.where(skip, old_scale, scale))
    growth_tracker.copy_(torch.where(skip, old_growth_tracker, growth_tracker))
    return (scale < old_scale) & (old_scale > 1)
