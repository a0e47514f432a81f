"""The loss on validation samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import DataError
from posenet.training.input_stream import RestartingLoader, UnreadableSampleBudget, raise_on_all_ranks


@dataclass
class ValidationData:
    """This rank's share of the validation samples.

    Attributes:
        max_unreadable: share of the samples that may be unreadable and replaced.
    """

    loader: RestartingLoader
    max_unreadable: float

    def close(self) -> None:
        """End the worker processes."""
        self.loader.close()


@torch.no_grad()
def validation_loss(
    model: nn.Module, data: ValidationData, runtime: Runtime, stop_requested: Callable[[], bool] = lambda: False
) -> float:
    """Mean loss per image over the validation samples of all ranks.

    Args:
        model: wrapped ``ModelWithLoss`` in evaluation mode.
        stop_requested: called before every batch; whether to stop.

    Raises:
        CollectiveDataError: too many samples cannot be read.
        StopRequested: any rank was asked to stop.
    """
    loss_and_count = torch.zeros(2, dtype=torch.float64)
    faults: list[str] = []
    error = None
    try:
        for batch in tqdm(
            data.loader, "validate", len(data.loader), unit="batch", leave=False, disable=not runtime.is_main
        ):
            if stop_requested():
                break
            batch = runtime.to_device(batch)
            losses = model(batch.images, batch.joints, batch.person_mask, batch.mask_miss).cpu().double()  # (N,)
            loss_and_count += torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
            faults += batch.faults
    except DataError as caught:
        error = caught
    budget = UnreadableSampleBudget(data.loader.num_samples, data.max_unreadable)
    budget.spend(raise_on_all_ranks(runtime, error, faults))
    if runtime.any_rank(stop_requested()):
        raise StopRequested
    loss, count = runtime.all_reduce_sum(loss_and_count).tolist()
    return float(loss / count)
