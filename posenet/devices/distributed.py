"""Several processes with one device each: DistributedDataParallel and the collective calls between ranks."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posenet.devices.rank_info import RankInfo
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES
from posenet.devices.rendezvous import meet
from posenet.devices.roll_call import RollCall
from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from posenet.errors import ConfigError, TrainingError

_log = logging.getLogger(__name__)

LOST_CONNECTION = re.compile(
    "connection (closed|reset|timed out)|read error|broken pipe|socket (unexpectedly )?closed|timed out waiting"
    "|timeout caused|connect timeout|no route to host|network is unreachable",
    re.IGNORECASE,
)
"""Gloo's messages about a connection that has ended. It raises a plain ``RuntimeError`` for them."""
WRONG_CALL = re.compile("ncclInvalid(Usage|Argument)")
"""NCCL's messages about a call that is wrong on this rank."""


def device_of_rank(device: torch.device, rank_info: RankInfo) -> torch.device:
    """The device of this process: the one of the type of ``device`` with the local rank as its index.

    If a scheduler shows each process only one device, it is that device for every local rank.

    Raises:
        ConfigError: this machine has fewer devices than processes, or ``device`` has an index.
    """
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ConfigError(
            f"--device {device}: every process uses another device; give only the type ({device.type}), "
            "and choose the devices with CUDA_VISIBLE_DEVICES or its equivalent"
        )
    device_count = torch.accelerator.device_count()
    if rank_info.local_rank >= device_count > 1:
        raise ConfigError(
            f"local rank {rank_info.local_rank} has no device: this machine has only {device_count}; "
            "start one process per device"
        )
    index = rank_info.local_rank if device_count > 1 else 0
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def require_devices(name: str, processes: int) -> None:
    """Raise ``ConfigError`` if this machine has too few devices for so many processes; one CPU is enough for all.

    ``name`` is that of the configured device, such as "auto".
    """
    # This process does not train, so it must not open a context on a device, as select_device does.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or name.partition(":")[0] not in ("auto", accelerator.type):
        return
    device_count = torch.accelerator.device_count()
    if processes > device_count:
        raise ConfigError(
            f"{processes} processes need {processes} {accelerator.type} devices, and this machine has {device_count}; "
            f"use --nproc {device_count} or --device cpu"
        )


def is_lost_contact(error: RuntimeError) -> bool:
    """Whether an error means that another process has ended or cannot be reached, and not that a call is wrong."""
    message = str(error)
    if isinstance(error, dist.DistError):
        return not WRONG_CALL.search(message)
    return "gloo" in message.lower() and LOST_CONNECTION.search(message) is not None


def process_group_backends(device: torch.device) -> str:
    """The backends to use: Gloo for tensors in host memory, that of the device (NCCL, HCCL, ...) for its tensors."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


class DistributedRuntime(Runtime):
    """One of several processes, each with one device, that train one network.

    Flags and objects are exchanged over Gloo from host memory, so these calls do not wait for the device. A collective
    call raises an error after it has waited ``timeout_minutes`` for the other ranks.

    Raises:
        TrainingError: the processes did not find or did not reach each other.
        ConfigError: the processes use different types of devices, or one device twice.
    """

    def __init__(
        self, device: torch.device, rank_info: RankInfo, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES
    ) -> None:
        super().__init__(device)
        self.rank = rank_info.rank
        self.world_size = rank_info.world_size
        timeout = timedelta(minutes=timeout_minutes)
        store, reports = meet(rank_info, device, timeout)
        dist.init_process_group(
            process_group_backends(device), store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )
        self.roll_call = RollCall(store, self.rank, reports)

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(super().wrap(module), gradient_as_bucket_view=True)
        # The buffers are BatchNorm statistics. Training does not read them, and the trainer broadcasts them before
        # each validation. The constructor's argument for this has different names in different releases of PyTorch.
        wrapped.broadcast_buffers = False
        return wrapped

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            return GroupBatchNorm2d.convert(network)
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return converted

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return cast(DistributedDataParallel, module).no_sync()

    def vote(self, *flags: bool) -> tuple[bool, ...]:
        self.roll_call.calls += 1
        votes = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(map(bool, votes.tolist()))

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        self.roll_call.calls += 1
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather_objects(self, value: Any) -> list[Any]:
        self.roll_call.calls += 1
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: Any) -> Any:
        self.roll_call.calls += 1
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        self.roll_call.calls += 1
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def has_lost_contact(self, error: RuntimeError) -> bool:
        return is_lost_contact(error)

    def explain_lost_contact(self, error: RuntimeError) -> TrainingError:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        # The launcher may end this process before the search is over.
        _log.error("rank %d has lost the other processes (%s); looking for the cause", self.rank, reason)
        culprits = self.roll_call.find_culprits()
        return TrainingError(f"lost the other processes ({reason}): {culprits}; continue the run with --resume")

    def close(self) -> None:
        self.roll_call.close()
        if dist.is_initialized():
            dist.destroy_process_group()
