"""Process groups on this machine: several real processes, one process alone, and an imitation of DataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenet.devices.distributed import DistributedRuntime, device_of_rank
from posenet.devices.launch import launch
from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo
from posenet.devices.runtime import Runtime
from tests.helpers.accelerators import check_simulation
from tests.helpers.tiny_training import CPU, train_tiny_network

TIMEOUT_MINUTES = 0.5
"""How long a process waits for the others in a collective call."""


def run_in_processes(world_size: int, folder: Path, task: Callable[[DistributedRuntime], Any]) -> list[Any]:
    """Call ``task(runtime)`` in ``world_size`` processes of one group; return the results in rank order.

    The processes are forked, so that they need not import PyTorch again. Results pass through files in ``folder``.
    """
    folder.mkdir(exist_ok=True)
    launch(world_size, _run_rank, task, folder, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _run_rank(rank_info: RankInfo, task: Callable[[DistributedRuntime], Any], folder: Path) -> None:
    runtime = DistributedRuntime(CPU, rank_info, timeout_minutes=TIMEOUT_MINUTES)
    result = task(runtime)
    torch.save(result, folder / f"{runtime.rank}.pt")
    runtime.close()


def run_on_devices(
    devices: Sequence[torch.device], folder: Path, task: Callable[[DistributedRuntime], Any]
) -> list[Any]:
    """Call ``task(runtime)`` in one process for each of the first devices of a type; return the results in rank order.

    The processes are spawned, because a process that has used a device cannot be forked. ``task`` must be importable.
    """
    folder.mkdir(exist_ok=True)
    launch(len(devices), _run_device_rank, devices[0].type, task, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(len(devices))]


def _run_device_rank(rank_info: RankInfo, device_type: str, task: Callable[..., Any], folder: Path) -> None:
    torch.set_num_threads(1)
    device = device_of_rank(torch.device(device_type), rank_info)
    runtime = DistributedRuntime(device, rank_info, timeout_minutes=TIMEOUT_MINUTES)
    with check_simulation():
        result = task(runtime)
    torch.save(result, folder / f"{runtime.rank}.pt")
    runtime.close()


@contextlib.contextmanager
def single_process_group() -> Iterator[DistributedRuntime]:
    """Yield a distributed runtime whose process group is this process alone."""
    runtime = DistributedRuntime(CPU, SINGLE_PROCESS, timeout_minutes=TIMEOUT_MINUTES)
    try:
        yield runtime
    finally:
        runtime.close()


class FakeDataParallel(nn.Module):
    """Computes on the CPU what ``nn.DataParallel`` computes on two devices: each half of the batch by itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: Tensor | None) -> Tensor:
        halves = [(None, None) if tensor is None else tensor.chunk(2) for tensor in batch]
        first_half, second_half = zip(*halves)
        return torch.cat([self.module(*first_half), self.module(*second_half)])


class FakeDataParallelRuntime(Runtime):
    """A runtime whose modules are wrapped in ``FakeDataParallel``."""

    def wrap(self, module: nn.Module) -> nn.Module:
        return FakeDataParallel(super().wrap(module))


def train_in_one_and_two_processes(
    stores: Mapping[str, Path], folder: Path, *overrides: str
) -> tuple[list[float | None], list[float | None]]:
    """Losses of a tiny network: of one process with batches of 4, and of two processes with batches of 2 each."""
    alone, _ = train_tiny_network(Runtime(CPU), stores, folder / "one", *overrides, "train.batch_size=4")

    def train(runtime: Runtime) -> list[float | None]:
        settings = (*overrides, "train.batch_size=2", "parallel.sync_bn=true")
        return train_tiny_network(runtime, stores, folder / "two", *settings)[0]

    return alone, run_in_processes(2, folder / "results", train)[0]
