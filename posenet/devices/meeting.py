"""How the processes that a launcher has started find each other, and what is said if they do not."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from posenet.devices.launch import RankInfo, meeting_point
from posenet.errors import ConfigError, ConnectError
from posenet.messages import first_sentence

POLL_SECONDS = 0.1
"""Time between two looks at who has arrived."""
FAREWELL_SECONDS = 2.0
"""Time for which rank 0, where the others look, shows a mistake before it ends."""

Result = TypeVar("Result")
Store = Any  # PyTorch has no types for its stores
_stores: dict[tuple[str, int], Store] = {}
"""The stores of this process. They stay open, because the processes may meet again, and rank 0 serves the others."""
_meetings = itertools.count()


def join_processes(info: RankInfo, timeout: timedelta, seconds: float) -> None:
    """Make the default process group, of Gloo, from the processes of a launcher, which meet within ``seconds``.

    ``timeout`` is that of the collective calls. ``ConfigError`` if an address, a rank or a number is wrong,
    ``ConnectError`` if the processes have not met in time.
    """
    init_group = functools.partial(
        dist.init_process_group, "gloo", rank=info.rank, world_size=info.world_size, timeout=timeout
    )
    if info.world_size == 1:
        init_group(store=dist.HashStore())  # type: ignore[attr-defined]  # PyTorch does not list it in __all__
        return
    host, port = meeting_point(info, os.environ)
    deadline = time.monotonic() + seconds

    def meet() -> None:
        # torchrun has a store of its own, and gives every process a rank of its own.
        is_hosted_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if (host, port) not in _stores:
            _stores[host, port] = dist.TCPStore(  # type: ignore[attr-defined]
                host,
                port,
                is_master=info.rank == 0 and not is_hosted_by_torchrun,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
                multi_tenant=True,
            )
        # It has keys of earlier processes, which torchrun has restarted, and of earlier meetings of these.
        prefix = f"posenet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
        store = dist.PrefixStore(prefix, _stores[host, port])  # type: ignore[attr-defined]
        if not is_hosted_by_torchrun:
            _compare_ranks(store, info, deadline, f"{host}:{port}")
        init_group(store=store)

    try:
        call_within(seconds + FAREWELL_SECONDS + 1, meet, f"the processes did not connect at {host}:{port}")
    except ConnectError as error:
        if (host, port) not in _stores:
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                raise ConnectError(
                    f"something else than rank 0 of this run listens at {host}:{port}: set MASTER_PORT to a free port "
                    "for all processes, or end the other program"
                ) from error
        raise


def call_within(seconds: float, function: Callable[[], Result], failure: str) -> Result:
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
    except (RuntimeError, ValueError, FutureTimeoutError) as error:
        reason = "no answer in time" if isinstance(error, FutureTimeoutError) else first_sentence(error)
        raise ConnectError(
            f"{failure} ({reason}); check that all were started and call posenet, and that no firewall is between; "
            "set GLOO_SOCKET_IFNAME on each host to the network interface that leads to the others (ip -brief address)"
        ) from error


def _compare_ranks(store: Store, info: RankInfo, deadline: float, where: str) -> None:
    """Wait until all ranks have come; ``ConfigError`` if two have the same rank, or other numbers of processes."""
    own = f"rank {info.rank} on {socket.gethostname()} is one of {info.world_size}"
    first = store.compare_set("first", "", own).decode()
    if first.rpartition(" ")[2] != str(info.world_size):
        store.set("problem", f"{first}, but {own} processes; give all the same WORLD_SIZE")
    elif store.add(f"rank {info.rank}", 1) > 1:
        store.set("problem", f"two processes are rank {info.rank}: {own}; give each its own RANK")
    store.add("arrived", 1)
    while True:
        arrived = store.add("arrived", 0)
        if store.check(["problem"]):  # whoever has one has said so before it was counted
            if info.rank == 0:  # it serves the store
                time.sleep(FAREWELL_SECONDS)
            raise ConfigError(store.get("problem").decode())
        if arrived >= info.world_size:
            return
        if time.monotonic() > deadline:
            missing = [str(rank) for rank in range(info.world_size) if not store.check([f"rank {rank}"])]
            raise ConnectError(
                f"of {info.world_size} processes, these ranks did not come to {where} within --timeout: "
                f"{', '.join(missing[:8])}; check that all were started, and that no firewall is between them"
            )
        time.sleep(POLL_SECONDS)
