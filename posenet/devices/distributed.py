"""Many processes, one device each: DistributedDataParallel and the words the processes exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posenet.devices.rank_info import RankInfo
from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from posenet.errors import ConfigError, TrainingError


def device_of_rank(device: torch.device, place: RankInfo) -> torch.device:
    """This process's device, of the type of ``device``: the one with its number on its machine.

    Where a scheduler shows every process one device only, that one.

    Raises:
        ConfigError: more processes on this machine than devices, or a device with a number.
    """
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ConfigError(
            f"--device {device}: every process takes a device of its own; name the type alone "
            f"({device.type}), and choose devices with CUDA_VISIBLE_DEVICES or its like"
        )
    count = torch.accelerator.device_count()
    if place.local_rank >= count > 1:
        raise ConfigError(
            f"process {place.local_rank} of this machine has no device: there are only {count}; start "
            "one process per device"
        )
    index = place.local_rank if count > 1 else 0
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def is_lost_contact(error: RuntimeError) -> bool:
    """Whether an error tells that another process has gone; Gloo's are plain ``RuntimeError``."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def process_group_backends(device: torch.device) -> str:
    """Gloo for what the host decides, beside the device's own backend (NCCL, HCCL ...) for what lies on it."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


class DistributedRuntime(Runtime):
    """One of ``world`` processes.

    Flags and objects go over Gloo from the host's memory, so asking the others never waits for the device.

    Args:
        device: this process's own.
        timeout_minutes: how long to wait for the others before giving up.
    """

    def __init__(self, device: torch.device, place: RankInfo, timeout_minutes: float = 10.0) -> None:
        super().__init__(device)
        self.rank, self.world_size = place.rank, place.world_size
        timeout = timedelta(minutes=timeout_minutes)
        try:
            store, *_ = next(dist.rendezvous(place.init_method, place.rank, place.world_size, timeout=timeout))
            # torchrun keeps its store over restarts, and with it the addresses of processes that have gone.
            store = dist.PrefixStore(f"posenet/{place.restarts}", store)
            dist.init_process_group(
                process_group_backends(device),
                store=store,
                rank=place.rank,
                world_size=place.world_size,
                timeout=timeout,
            )
        except dist.DistError as error:
            reason = str(error).partition("\n")[0]
            raise TrainingError(
                f"the {place.world_size} processes did not find each other ({reason}); check that all are "
                f"started and reach {place.init_method}"
            ) from error

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(super().wrap(module), gradient_as_bucket_view=True)
        # Buffers are BatchNorm statistics, which training never reads; copy_from_main shares them before validation.
        # As an argument this has another name in every few releases of PyTorch.
        wrapped.broadcast_buffers = False
        return wrapped

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        convert = GroupBatchNorm2d.convert if self.device.type == "cpu" else nn.SyncBatchNorm.convert_sync_batchnorm
        return convert(network)

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return module.no_sync()

    def vote(self, *flags: bool) -> tuple[bool, ...]:
        votes = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(map(bool, votes.tolist()))

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather_objects(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: Any) -> Any:
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
