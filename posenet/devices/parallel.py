"""How training uses devices and processes: one device, DataParallel, or DistributedDataParallel."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel, scatter

from posenet.devices.device import make_current, parse_device, select_device
from posenet.devices.launch import RankInfo, rank_info
from posenet.devices.meeting import call_within, join_processes
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, Ranks
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from posenet.errors import ConfigError, TrainingError
from posenet.messages import first_sentence

_log = logging.getLogger(__name__)


class Runtime(Ranks):
    """One process on one device: the calls of ``Ranks`` that concern all processes just call their function."""

    device = torch.device("cpu")

    def select_device(self, name: str) -> None:
        """Use the device called ``name``; "auto" is an accelerator or the CPU. ``ConfigError`` if it is missing."""
        self.device = select_device(name)

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

    def sum_over_ranks(self, *numbers: int) -> list[int]:
        """For each number or flag of the host, the sum over all ranks. This does not wait for the device."""
        return list(map(int, numbers))

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The elementwise sum of a tensor on the device over all ranks."""
        return values

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors on the device with those of rank 0."""

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Within this context, an error of PyTorch that the user can fix becomes a ``TrainingError``."""
        try:
            yield
        except RuntimeError as error:
            explained = self.as_training_error(error)
            if explained is None:
                raise
            raise explained from error

    def as_training_error(self, error: RuntimeError) -> TrainingError | None:
        """The error to show for an error of PyTorch that the user can fix; None for any other."""
        if isinstance(error, torch.OutOfMemoryError):
            return TrainingError(
                f"{self.device} has too little memory; lower train.batch_size, and raise optim.accumulate by the same "
                "factor to keep the samples per step"
            )
        if "torch.use_deterministic_algorithms" in str(error):
            return TrainingError(
                f"{self.device} cannot train with deterministic algorithms ({first_sentence(error)}); set "
                "train.deterministic=false"
            )
        return None


class DataParallelRuntime(Runtime):
    """One process that splits every batch over several devices; with a single device it is a plain ``Runtime``.

    Batches stay in host memory until DataParallel splits them. BatchNorm computes its statistics on each device
    separately. ``indices`` are the numbers of the devices; None means all of the type of the configured device.
    """

    def __init__(self, indices: Sequence[int] | None = None) -> None:
        self.indices = indices
        self.devices = [self.device]

    def select_device(self, name: str) -> None:
        super().select_device(name)
        type, indices = self.device.type, self.indices
        named = "" if indices is None else ",".join(map(str, indices))
        if indices is not None and len(set(indices)) < len(indices):
            raise ConfigError(f"--devices {named} names a device twice; give each once")
        if type == "cpu":
            if named:
                raise ConfigError(f"--devices {named} names accelerators, and this run is on the CPU; leave it out")
            return
        if indices is None:
            indices = range(torch.accelerator.device_count())
        self.devices = [select_device(f"{type}:{index}") for index in indices]
        self.device = self.devices[0]
        try:
            scatter(torch.zeros(len(indices)), self.devices)
        except (RuntimeError, AttributeError) as error:  # only builds of PyTorch for CUDA and ROCm can do it
            raise ConfigError(
                f"DataParallel cannot use {len(indices)} devices of type {type}, only CUDA devices; use posenet "
                f"train-distributed --nproc {len(indices)}, or one device with --devices {indices[0]}"
            ) from error
        make_current(self.device)

    def wrap(self, module: nn.Module) -> nn.Module:
        if len(self.devices) == 1:
            _log.info("DataParallel: %s is the only device, so this run is the same as posenet train", self.device)
            return super().wrap(module)
        if getattr(module, "is_compiled", False):
            raise ConfigError("DataParallel cannot use a compiled network; use posenet train-distributed")
        _log.info("DataParallel over %s", ", ".join(map(str, self.devices)))
        return nn.DataParallel(super().wrap(module), device_ids=self.devices)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        if len(self.devices) > 1:
            raise ConfigError("DataParallel cannot synchronize BatchNorm; use posenet train-distributed --sync-bn")
        return network

    def to_device(self, batch: Any) -> Any:
        return super().to_device(batch) if len(self.devices) == 1 else batch


class DistributedRuntime(Runtime):
    """One of several processes, each with one device, that train one network.

    Flags and objects are exchanged over Gloo from host memory, so these calls do not wait for the device. Such a call
    raises an error after it has waited ``timeout_minutes`` for the other ranks; an exchange of tensors on an
    accelerator may end the process instead, as NCCL does. The processes are those of the process group that exists,
    which is left as it was; else those of the launcher (see ``launch.rank_info``); else this process is the only one.
    ``ConfigError`` if the processes can never meet, ``ConnectError`` if they have not within ``meet_minutes``, which
    are ``timeout_minutes`` by default, ``TrainingError`` if one ends at once.
    """

    _timeout = timedelta(minutes=DEFAULT_TIMEOUT_MINUTES)

    def __init__(self, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES, meet_minutes: float | None = None) -> None:
        self._timeout = timedelta(minutes=timeout_minutes)
        self._group: dist.ProcessGroup | None = None  # for objects and flags; None is the default group
        seconds = 60 * (timeout_minutes if meet_minutes is None else meet_minutes)
        info = RankInfo() if dist.is_initialized() else rank_info(os.environ)
        if dist.is_initialized():
            new_group = functools.partial(dist.new_group, backend="gloo", timeout=self._timeout)
            self._group = call_within(time.monotonic() + seconds, new_group, "the processes did not form a group")
        else:
            join_processes(info, self._timeout, seconds)
        self._device_group = self._group  # for tensors on the device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        with self.explain_errors():
            hosts = self.gather_objects(socket.gethostname())
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        if info.local_rank is not None:
            self.local_rank = info.local_rank

    def select_device(self, name: str) -> None:
        self.device = self.run_on_all(lambda: device_of_rank(name, self.local_rank))
        types = self.gather_objects(self.device.type)
        if len(set(types)) > 1:
            used = ", ".join(f"{kind} (rank {types.index(kind)})" for kind in dict.fromkeys(types))
            self.raise_on_all(ConfigError(f"all processes must use the same type of device, not {used}; set --device"))
        if self.device.type != "cpu":
            backend = dist.get_default_backend_for_device(self.device)
            self._device_group = dist.new_group(backend=backend, timeout=self._timeout)

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(
            super().wrap(module), process_group=self._device_group, gradient_as_bucket_view=True
        )
        # The buffers are BatchNorm statistics. Training does not read them, and the trainer broadcasts them before
        # each validation. The constructor's argument for this has different names in different releases of PyTorch.
        wrapped.broadcast_buffers = False
        return wrapped

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            return GroupBatchNorm2d.convert(network)
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(  # type: ignore[no-untyped-call]
            network, self._device_group
        )
        return converted

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return cast(DistributedDataParallel, module).no_sync()

    def sum_over_ranks(self, *numbers: int) -> list[int]:
        total = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(total, group=self._group)
        return cast("list[int]", total.tolist())

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=self._device_group)
        return total

    def gather_objects(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast_object(self, value: Any) -> Any:
        file = io.BytesIO()
        sender = _TensorSender(file)
        if self.is_main:
            sender.dump(value)
        message = [file.getvalue()]
        dist.broadcast_object_list(message, src=0, group=self._group)
        if not self.is_main:
            return _TensorReceiver(io.BytesIO(message[0]), self._group).load()
        for tensor in sender.tensors:
            _broadcast_bytes(tensor.contiguous(), self._group)
        return value

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0, group=self._device_group)

    def as_training_error(self, error: RuntimeError) -> TrainingError | None:
        # Gloo raises a plain RuntimeError when another process has ended or does not answer.
        if "gloo" in str(error).lower() and "timed out" in str(error).lower():
            minutes = self._timeout.total_seconds() / 60
            return TrainingError(
                f"waited {minutes:g} minutes for another process, which hangs or still works, as rank 0 does while it "
                "prepares data; allow more with --timeout, or start again with --resume"
            )
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            return TrainingError(
                f"lost the other processes ({first_sentence(error)}); the one that has failed names the cause. Start "
                "the run again with --resume"
            )
        return super().as_training_error(error)

    def close(self) -> None:
        """Leave the process group. After an error this is not called: it could wait for a process that hangs."""
        if self._group is None:
            dist.destroy_process_group()
            return
        for group in {self._group, self._device_group}:
            dist.destroy_process_group(group)


class _TensorSender(pickle.Pickler):
    """Pickles an object with the shapes and dtypes alone of its plain tensors in host memory, which ``tensors`` lists.

    In a pickle a tensor would be in memory several times, and checkpoints have gigabytes of them.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> tuple[torch.Size, torch.dtype] | None:
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
            return None
        self.tensors.append(value.detach())
        return value.shape, value.dtype


class _TensorReceiver(pickle.Unpickler):
    """Unpickles an object, and receives its tensors from rank 0 while it does."""

    def __init__(self, file: io.BytesIO, group: dist.ProcessGroup | None) -> None:
        super().__init__(file)
        self.group = group

    def persistent_load(self, kind: tuple[torch.Size, torch.dtype]) -> Tensor:
        shape, dtype = kind
        tensor = torch.empty(shape, dtype=dtype)
        _broadcast_bytes(tensor, self.group)
        return tensor


def _broadcast_bytes(tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Overwrite a contiguous tensor in host memory, of any dtype, with that of rank 0."""
    if tensor.numel():
        dist.broadcast(tensor.view(-1).view(torch.uint8), src=0, group=group)


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """The device of this process: of the type that ``name`` names, with the local rank as its index.

    If this machine has, or a scheduler shows to each process, only one device, it is that one. ``ConfigError`` if there
    are several, but fewer than processes, or ``name`` has an index.
    """
    device = select_device("auto") if name == "auto" else parse_device(name)
    if device.type == "cpu":
        return device
    if name != "auto" and device.index is not None:
        raise ConfigError(
            f"--device {device}: every process uses another device; give only the type ({device.type}), "
            "and choose the devices with CUDA_VISIBLE_DEVICES or its equivalent"
        )
    device_count = torch.accelerator.device_count()
    if local_rank >= device_count > 1:
        raise ConfigError(
            f"local rank {local_rank} has no device: this machine has only {device_count}; start one process per device"
        )
    return select_device(f"{device.type}:{local_rank if device_count > 1 else 0}")
