"""Where and how a computation runs: device, precision, random states and, for one process, the collectives.

The trainer asks a ``Runtime`` whether it may write, what all processes together decided, and for the
wrapped module. This one is the world of a single process on a single device; ``parallel.py`` and
``distributed.py`` have the larger worlds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Runtime:
    """One process on one device.

    Attributes:
        device: where the network runs.
        rank, world_size: this process's number and how many there are.
    """

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device and make it train as one over all processes."""
        return module.to(self.device)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        """Let every BatchNorm take its statistics over all processes; a process alone has nothing to share."""
        return network

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Within it, forward and backward of a wrapped module keep the gradient on this process."""
        return contextlib.nullcontext()

    def to_device(self, batch: Any) -> Any:
        """A batch where the wrapped module takes it."""
        return batch.to(self.device)

    def any_rank(self, flag: bool) -> bool:
        """Whether any process says so."""
        return self.vote(flag)[0]

    def vote(self, *flags: bool) -> tuple[bool, ...]:
        """``any`` for several flags at once."""
        return flags

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over processes."""
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        """One value from every process, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The main process's value."""
        return value

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of the main process."""

    def close(self) -> None:
        """Leave the other processes."""

    def random_state(self) -> dict[str, Any]:
        """PyTorch's generators on the CPU and this device."""
        state = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            state["device"] = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def set_random_state(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if self.device.type != "cpu" and "device" in state:
            torch.get_device_module(self.device).set_rng_state(state["device"], self.device)

    def synchronize(self) -> None:
        """Wait for the device, before a clock is read."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
