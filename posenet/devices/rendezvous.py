"""Bringing the processes of a run together: a shared store, a check of the hosts and of the network between them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not in PyTorch's __all__

from posenet.devices.capabilities import device_identity
from posenet.devices.rank_info import RankInfo
from posenet.errors import ConfigError, TrainingError
from posenet.messages import pluralize

CONNECT_TIMEOUT = timedelta(minutes=1)
"""Longest time in which processes that have met in the store must connect to each other directly."""
GLOO_CONNECT_FACTOR = 5
"""Gloo waits this many times its timeout for a connection."""
MAX_NAMED_RANKS = 8
"""Ranks that a message names; further ones are only counted."""


@dataclass(frozen=True)
class ProcessReport:
    """What a process tells the others about itself before they connect."""

    rank: int
    host: str
    address: str  # the address at which Gloo listens; empty if GLOO_SOCKET_IFNAME selects a network interface
    device_type: str
    device: str  # identifies the device on its host; empty for a CPU, which processes share

    @property
    def listens_on_loopback(self) -> bool:
        """Whether only processes on the same host can connect to this one."""
        return self.address.startswith("127.") or self.address == "::1"


class Meeting(NamedTuple):
    """Processes that have met."""

    store: Store  # shared by all processes of the run, and by no other run
    reports: list[ProcessReport]  # in rank order


def meet(rank_info: RankInfo, device: torch.device, timeout: timedelta) -> Meeting:
    """Wait until all processes of the run have arrived and can connect to each other.

    Raises:
        TrainingError: processes did not arrive in time, or do not reach each other.
        ConfigError: the processes use different types of devices, or one device twice.
    """
    try:
        store = _connect_store(rank_info, timeout)
        reports = _exchange_reports(store, rank_info, device, timeout)
    except dist.DistError as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"the {rank_info.world_size} processes did not find each other ({reason}); check that all of them "
            f"were started and can reach {_meeting_point(rank_info)}"
        ) from error
    _require_same_device_type(reports)
    _require_different_devices(reports)
    if rank_info.world_size > 1:
        _require_connections(store, rank_info, reports, min(timeout, CONNECT_TIMEOUT))
    return Meeting(store, reports)


def _connect_store(rank_info: RankInfo, timeout: timedelta) -> Store:
    """The store of this run. Processes of another run that use the same port see other keys."""
    url = urlsplit(_meeting_point(rank_info))
    store = TCPStore(
        url.hostname or "",
        url.port or 0,
        rank_info.world_size,
        is_master=_hosts_store(rank_info),
        timeout=timeout,
        wait_for_workers=False,
    )
    # torchrun keeps its store over restarts, and with it the addresses of processes that have ended.
    return PrefixStore(f"posenet/{rank_info.run_id}/{rank_info.restarts}", store)


def _meeting_point(rank_info: RankInfo) -> str:
    """The URL of the store; ``ConfigError`` if the environment should name it but does not."""
    if rank_info.init_method != "env://":
        return rank_info.init_method
    try:
        host = os.environ["MASTER_ADDR"]
        return f"tcp://{f'[{host}]' if ':' in host else host}:{int(os.environ['MASTER_PORT'])}"
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"the launcher's environment does not say where the processes meet ({error}); start with torchrun, srun or "
            "--nproc, or set MASTER_ADDR and MASTER_PORT"
        ) from error


def _hosts_store(rank_info: RankInfo) -> bool:
    """Whether this process hosts the store. torchrun and ``launch`` may host it themselves."""
    if rank_info.init_method != "env://":
        return rank_info.hosts_store
    return rank_info.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _exchange_reports(
    store: Store, rank_info: RankInfo, device: torch.device, timeout: timedelta
) -> list[ProcessReport]:
    """The reports of all processes, in rank order."""
    report = ProcessReport(rank_info.rank, socket.gethostname(), gloo_address(), device.type, device_identity(device))
    keys = [f"report/{rank}" for rank in range(rank_info.world_size)]
    store.set(keys[rank_info.rank], json.dumps(asdict(report)))
    try:
        store.wait(keys, timeout)
    except dist.DistError as error:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise TrainingError(
            f"{describe_ranks(missing)} of {rank_info.world_size} did not arrive at {_meeting_point(rank_info)} within "
            f"{timeout.total_seconds():g} s; check that all processes were started, or raise --timeout"
        ) from error
    reports = [ProcessReport(**json.loads(store.get(key))) for key in keys]
    # The reports may end the run. The process that hosts the store must not end before the others have read them.
    store.set(f"read/{rank_info.rank}", "")
    if _hosts_store(rank_info):
        store.wait([f"read/{rank}" for rank in range(rank_info.world_size)], timeout)
    return reports


def _wait_for_all(store: Store, event: str, rank_info: RankInfo, timeout: timedelta) -> None:
    """Report an event in the store and wait until all processes have done it; ``DistStoreError`` after a timeout."""
    store.set(f"{event}/{rank_info.rank}", "")
    store.wait([f"{event}/{rank}" for rank in range(rank_info.world_size)], timeout)


def gloo_address() -> str:
    """The address at which Gloo listens on this host; empty if GLOO_SOCKET_IFNAME selects a network interface.

    Gloo listens at the first address of the host name that belongs to this host, and else on the loopback interface.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return ""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as listener:
                listener.bind((address[0], 0))
                return str(address[0])
    return "127.0.0.1"


def _require_same_device_type(reports: Sequence[ProcessReport]) -> None:
    first = reports[0]
    for report in reports:
        if report.device_type != first.device_type:
            raise ConfigError(
                f"all processes must use the same type of device: {first.device_type} on {first.host} (rank "
                f"{first.rank}), but {report.device_type} on {report.host} (rank {report.rank}); set --device"
            )


def _require_different_devices(reports: Sequence[ProcessReport]) -> None:
    """Raise ``ConfigError`` if two processes use one device, which NCCL and its equivalents refuse."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for report in reports:
        if report.device:
            ranks_of.setdefault((report.host, report.device), []).append(report.rank)
    for (host, _), ranks in ranks_of.items():
        if len(ranks) > 1:
            device_type = reports[0].device_type
            raise ConfigError(
                f"{describe_ranks(ranks)} use the same {device_type} device of {host}; start one process per device, "
                "and let every process see its device, or all devices of the host"
            )


def _require_connections(
    store: Store, rank_info: RankInfo, reports: Sequence[ProcessReport], timeout: timedelta
) -> None:
    """Connect all processes once, as the process group will do later.

    This trial can have a shorter timeout than the collective calls, and its error names the hosts and the cause.

    Raises:
        TrainingError: hosts do not reach each other.
    """
    hosts = list(dict.fromkeys(report.host for report in reports))
    loopback_hosts = {report.host: report.address for report in reports if report.listens_on_loopback}
    reason = ""
    # Gloo may connect from a host that listens on its loopback interface to another host, but not between two of them.
    if len(hosts) == 1 or len(loopback_hosts) < 2:
        try:
            trial_store = PrefixStore("trial", store)
            gloo_timeout = timeout / GLOO_CONNECT_FACTOR
            group = dist.ProcessGroupGloo(trial_store, rank_info.rank, rank_info.world_size, gloo_timeout)
            # A process that closes its connections at once would break those that others are still making.
            _wait_for_all(store, "connected", rank_info, timeout)
            del group
            return
        except RuntimeError as error:
            reason = f" ({_first_sentence(error)})"
    processes = pluralize(rank_info.world_size, "process", "processes")
    if len(hosts) > 1 and loopback_hosts:
        named = ", ".join(f"{host} listens at {address}" for host, address in loopback_hosts.items())
        reason = f": {named}, where other hosts cannot connect"
    raise TrainingError(
        f"the {processes} on {', '.join(hosts)} did not reach each other{reason}; set GLOO_SOCKET_IFNAME on every host "
        "to the network interface that leads to the others, such as eth0 (ip -brief address lists them), or correct "
        "/etc/hosts and the firewall"
    )


def _first_sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". ")[0]


def describe_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 1, 2 and 40 more``."""
    named = ", ".join(map(str, ranks[:MAX_NAMED_RANKS]))
    further = len(ranks) - MAX_NAMED_RANKS
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}" + (f" and {further} more" if further > 0 else "")
