"""How training uses several devices or processes: DataParallel, or DistributedDataParallel, and how processes meet."""

import contextlib
import functools
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel, scatter

from posenet.devices.device import select_device
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, RankInfo, Result, rank_info, rendezvous_address
from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from posenet.errors import ConfigError, ConnectError
from posenet.messages import first_sentence

SHUTDOWN_SECONDS = 2.0
"""Time for which rank 0 serves the others, which look for a mistake, before it ends."""

Store = Any  # PyTorch has no types for its stores
_meetings = itertools.count()
_log = logging.getLogger(__name__)


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
        if indices is not None and (type == "cpu" or len(set(indices)) < len(indices)):
            named = ",".join(map(str, indices))
            raise ConfigError(f"--devices {named}: give each accelerator once, and leave the flag out on the CPU")
        if type == "cpu":
            return
        if indices is None:
            indices = range(torch.accelerator.device_count())
        self.devices = [select_device(f"{type}:{index}") for index in indices]
        self.device = select_device(str(self.devices[0]))  # the current device is the one that was selected last
        try:
            scatter(torch.zeros(len(indices)), self.devices)
        except (RuntimeError, AttributeError) as error:  # only builds of PyTorch for CUDA and ROCm can do it
            raise ConfigError(
                f"DataParallel cannot use devices of type {type}, only CUDA devices; use posenet train-distributed "
                f"--nproc {len(indices)}"
            ) from error

    def wrap(self, module: nn.Module) -> nn.Module:
        if len(self.devices) == 1:
            _log.info("DataParallel: %s is the only device, so this run is the same as posenet train", self.device)
            return super().wrap(module)
        if getattr(module, "compiled", None):
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

    They are those of the process group that exists, which is left as it was; else those of the launcher (see
    ``ranks.rank_info``); else this process is the only one. Flags and objects are exchanged over Gloo from host
    memory, so these calls do not wait for the device. A call raises an error after it has waited ``timeout_minutes``
    for the other ranks; NCCL may end the process instead. ``ConfigError`` if the processes can never meet,
    ``ConnectError`` if they have not within ``meet_minutes`` (``timeout_minutes`` by default).
    """

    def __init__(self, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES, meet_minutes: float | None = None) -> None:
        self.timeout_minutes = timeout_minutes
        self._timeout = timedelta(minutes=timeout_minutes)
        seconds = 60 * (timeout_minutes if meet_minutes is None else meet_minutes)
        info = RankInfo() if dist.is_initialized() else rank_info(os.environ)
        # For objects and flags, and for tensors on the device; None is the default group, which is ours.
        self._group = self._device_group = _join_processes(info, self._timeout, seconds)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        with self.explain_errors():
            hosts = self.gather_objects(socket.gethostname())
        counted = hosts[: self.rank].count(hosts[self.rank])
        self.local_rank = counted if info.local_rank is None else info.local_rank

    def select_device(self, name: str) -> None:
        self.device = self.run_on_all(lambda: device_of_rank(name, self.local_rank))
        types = self.gather_objects(self.device.type)
        if len(set(types)) > 1:
            used = ", ".join(dict.fromkeys(types))
            self.raise_on_all(ConfigError(f"all processes must use the same type of device, not {used}; set --device"))
        if self.device.type != "cpu":
            backend = dist.get_default_backend_for_device(self.device)
            self._device_group = dist.new_group(backend=backend, timeout=self._timeout)

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(
            super().wrap(module), process_group=self._device_group, gradient_as_bucket_view=True
        )
        # BatchNorm statistics are broadcast before each validation. PyTorch renames the constructor's argument.
        wrapped.broadcast_buffers = False
        return wrapped

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            return GroupBatchNorm2d.convert(network, self._device_group)
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        return cast(nn.Module, convert(network, self._device_group))

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
        if self.world_size == 1:
            return value  # PyTorch would pickle it, which takes twice the memory of a checkpoint
        message = [value]
        dist.broadcast_object_list(message, src=0, group=self._group)
        return message[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, src=0, group=self._device_group)

    def close(self) -> None:
        """Leave the process group. After an error this is not called: it could wait for a process that hangs."""
        if self._group is None:
            dist.destroy_process_group()
            return
        for group in {self._group, self._device_group}:
            dist.destroy_process_group(group)


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """The device of this process: of the type ``name``, with the local rank as its index.

    If this process sees only one device, it is that one. ``ConfigError`` if there are several, but fewer than
    processes, or ``name`` has an index.
    """
    kind, _, index = name.partition(":")
    if name == "auto":
        kind = select_device(name).type
    if kind == "cpu":
        return torch.device(kind)
    if index:
        raise ConfigError(
            f"--device {name}: every process uses another device; give the type, {kind}, and choose devices with "
            "CUDA_VISIBLE_DEVICES"
        )
    count = torch.accelerator.device_count()
    if local_rank >= count > 1:
        raise ConfigError(
            f"local rank {local_rank} has no device: this machine has only {count}; start one process per device"
        )
    return select_device(f"{kind}:{local_rank if count > 1 else 0}")


def _join_processes(info: RankInfo, timeout: timedelta, seconds: float) -> dist.ProcessGroup | None:
    """A new group of the processes of the group that exists; or None, and the default group is made of a launcher's.

    The groups use Gloo. ``timeout`` is that of the collective calls; the processes meet within ``seconds``.
    """
    if dist.is_initialized():
        new_group = functools.partial(dist.new_group, backend="gloo", timeout=timeout)
        group: dist.ProcessGroup = _call_within(seconds, new_group, "the processes did not form a group")
        return group
    init_group = functools.partial(
        dist.init_process_group, "gloo", rank=info.rank, world_size=info.world_size, timeout=timeout
    )
    if info.world_size == 1:
        init_group(store=dist.HashStore())  # type: ignore[attr-defined]  # PyTorch does not list it in __all__
        return None
    host, port = rendezvous_address(info, os.environ)
    deadline = time.monotonic() + seconds

    def meet() -> None:
        # torchrun serves a store, with the keys of processes that it has restarted, and gives each a rank of its own.
        has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_server = info.rank == 0 and not has_store
        prefix = f"posenet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
        store = dist.PrefixStore(prefix, _open_store(host, port, is_server, seconds))  # type: ignore[attr-defined]
        if not has_store:
            _compare_ranks(store, info, deadline, f"{host}:{port}")
        init_group(store=store)

    _call_within(seconds + SHUTDOWN_SECONDS + 1, meet, f"the processes did not connect at {host}:{port}")
    return None


@functools.cache  # it stays open: the processes may meet again, and rank 0 serves the others
def _open_store(host: str, port: int, is_server: bool, seconds: float) -> Store:
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=is_server,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _compare_ranks(store: Store, info: RankInfo, deadline: float, where: str) -> None:
    """Wait until all ranks have come; ``ConfigError`` if two have the same rank, or other numbers of processes."""
    store.append("arrived", f"{info.rank} of {info.world_size} on {socket.gethostname()}\n")
    is_possible, is_late = True, False
    while is_possible and not is_late:
        is_late = time.monotonic() > deadline
        arrived = store.get("arrived").decode().splitlines()
        ranks, _, sizes, *_ = zip(*map(str.split, arrived))
        is_possible = len(set(sizes)) == 1 and len(set(ranks)) == len(ranks)
        if is_possible and len(arrived) == info.world_size:
            return
        time.sleep(0.1)
    if info.rank == 0:  # it serves the store, where the others look
        time.sleep(SHUTDOWN_SECONDS)
    error = ConnectError if is_possible else ConfigError
    raise error(
        f"only these processes came to {where}: {', '.join(f'rank {line}' for line in arrived[:8])}; "
        "start all within --timeout, give each a RANK of its own and all the same WORLD_SIZE, and let no firewall be "
        "between them"
    )


def _call_within(seconds: float, function: Callable[[], Result], failure: str) -> Result:
    """The result of a function of PyTorch that may wait for other processes, also longer than it is told.

    A function that waits on is left in a thread, which ends with this process. ``ConnectError``, which begins with
    ``failure``, if it has not returned within ``seconds``, or PyTorch has raised an error.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        return future.result(seconds)
    except (RuntimeError, ValueError, TimeoutError) as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else first_sentence(error)
        raise ConnectError(
            f"{failure} ({reason}): start all of them, and call posenet in each; if another program listens there, set "
            "MASTER_PORT to a free port for all; let firewalls pass their connections; set GLOO_SOCKET_IFNAME on each "
            "host to the network interface that leads to the others (ip -brief address)"
        ) from error
