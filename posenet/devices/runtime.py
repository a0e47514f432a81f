"""The interface through which training uses devices and other processes, implemented for one process on one device.

``DataParallelRuntime`` (data_parallel.py) uses several devices in one process; ``DistributedRuntime`` (distributed.py)
is one of several processes. Code that calls a runtime is the same for all three.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenet.devices.ranks import Ranks
from posenet.errors import TrainingError


class Runtime(Ranks):
    """One process on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device and wrap it, so that its gradients are averaged over the batches of all ranks."""
        return module.to(self.device)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        """Make every BatchNorm compute its statistics over the batches of all ranks."""
        return network

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """A context in which the backward pass of a wrapped module does not exchange gradients between ranks."""
        return contextlib.nullcontext()

    def to_device(self, batch: Any) -> Any:
        """Move a batch to where the wrapped module expects it."""
        return batch.to(self.device)

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.vote(flag)[0]

    def vote(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set on any rank."""
        return flags

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The elementwise sum of a tensor over all ranks."""
        return values

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""

    def has_lost_contact(self, error: RuntimeError) -> bool:
        """Whether an error means that another process has ended or cannot be reached."""
        return False

    def explain_lost_contact(self, error: RuntimeError) -> TrainingError:
        """Find out which processes do not answer; return an error that names them. This takes some seconds."""
        raise NotImplementedError("one process has no other to lose")

    def synchronize(self) -> None:
        """Wait until the device has finished all its work, so that a clock can be read."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
