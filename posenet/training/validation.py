"""The loss on validation samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import DataError
from posenet.progress import progress_bar
from posenet.training.input_stream import RestartingLoader, UnreadableSampleBudget, exchange_faults


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    loader: RestartingLoader,
    max_unreadable: float,
    runtime: Runtime,
    stop_requested: Callable[[], bool],
    progress: bool,
) -> float:
    """Mean loss per image over the validation samples of all ranks.

    Args:
        model: wrapped ``ModelWithLoss`` in evaluation mode.
        loader: this rank's share of the samples.
        max_unreadable: share of the samples that may be unreadable and replaced.
        stop_requested: called before every batch; returns whether to stop.
        progress: whether to show a progress bar.

    Raises:
        CollectiveDataError: too many samples cannot be read.
        StopRequested: ``stop_requested`` returned true on any rank.
    """
    loss_and_count = torch.zeros(2, dtype=torch.float64)
    faults: list[str] = []
    error = None
    try:
        for batch in progress_bar(loader, "validate", len(loader), unit="batch", leave=False, disable=not progress):
            if stop_requested():
                break
            batch = runtime.to_device(batch)
            losses = model(batch.images, batch.joints, batch.person_mask, batch.mask_miss, batch.supervised)  # (N,)
            losses = losses.cpu().double()
            loss_and_count += torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
            faults += batch.faults
    except DataError as caught:
        error = caught
    budget = UnreadableSampleBudget(loader.num_samples, max_unreadable)
    budget.spend(exchange_faults(runtime, error, faults))
    if runtime.any_rank(stop_requested()):
        raise StopRequested
    loss, count = runtime.all_reduce_sum(loss_and_count).tolist()
    return float(loss / count)
