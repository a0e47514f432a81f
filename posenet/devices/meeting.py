"""How the processes that a launcher has started find each other, and what is said if they do not."""

from __future__ import annotations

import functools
import itertools
import json
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
    if info.world_size == 1:
        store: Store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timeout)
        return
    deadline = time.monotonic() + seconds
    host, port = meeting_point(info, os.environ)
    # torchrun has a store of its own, and gives every process a rank of its own.
    is_hosted_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    _stores[host, port] = _stores.get((host, port)) or _open_store(
        host, port, is_server=info.rank == 0 and not is_hosted_by_torchrun, seconds=seconds
    )
    # It has keys of earlier processes, which torchrun has restarted, and of earlier meetings of these.
    prefix = f"posenet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
    store = dist.PrefixStore(prefix, _stores[host, port])  # type: ignore[attr-defined]
    failure = f"the processes did not connect at {host}:{port}"
    if not is_hosted_by_torchrun:
        compare = functools.partial(_compare_ranks, store, info, deadline, f"{host}:{port}")
        call_within(deadline + 2 * FAREWELL_SECONDS, compare, failure)
    join = functools.partial(
        dist.init_process_group, "gloo", store=store, rank=info.rank, world_size=info.world_size, timeout=timeout
    )
    call_within(max(deadline, time.monotonic() + 1), join, failure)


def call_within(deadline: float, function: Callable[[], Result], failure: str) -> Result:
    """The result of a function of PyTorch that may wait for other processes, also longer than it is told.

    ``deadline`` is a time of ``time.monotonic``; a function that waits on is left in a thread, which ends with this
    process. ``ConnectError``, which begins with ``failure``, if it has not returned, or has raised an error.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        return future.result(max(deadline - time.monotonic(), 0))
    except (RuntimeError, ValueError, FutureTimeoutError) as error:
        reason = "no answer in time" if isinstance(error, FutureTimeoutError) else first_sentence(error)
        raise ConnectError(
            f"{failure} ({reason}); check that all were started and call posenet, and that no firewall is between; "
            "set GLOO_SOCKET_IFNAME on each host to the network interface that leads to the others (ip -brief address)"
        ) from error


def _open_store(host: str, port: int, is_server: bool, seconds: float) -> Store:
    """The table in which the processes find each other, which rank 0 serves."""
    open_store = functools.partial(
        dist.TCPStore,  # type: ignore[attr-defined]  # PyTorch does not list it in __all__
        host,
        port,
        is_master=is_server,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        multi_tenant=True,
    )
    try:
        # PyTorch waits without an end for the answer of another program.
        return call_within(
            time.monotonic() + seconds + 1, open_store, f"the processes did not connect at {host}:{port}"
        )
    except ConnectError as error:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            raise error from None
        raise ConnectError(
            f"something else than rank 0 of this run listens at {host}:{port}: set MASTER_PORT to a free port for all "
            "processes, or end the other program"
        ) from error


def _compare_ranks(store: Store, info: RankInfo, deadline: float, where: str) -> None:
    """Wait until all ranks have come; ``ConfigError`` if two have the same rank, or other numbers of processes."""
    own = {"rank": info.rank, "world_size": info.world_size, "host": socket.gethostname()}
    first = json.loads(store.compare_set("first", "", json.dumps(own)))
    if first["world_size"] != info.world_size:
        found = (f"rank {some['rank']} on {some['host']} is one of {some['world_size']}" for some in (first, own))
        store.set("problem", f"{'; '.join(found)} processes; give all the same WORLD_SIZE")
    elif store.add(f"rank {info.rank}", 1) > 1:
        store.set("problem", f"two processes are rank {info.rank}, one on {own['host']}; give each its own RANK")
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
                f"{', '.join(missing[:8])}; check that all were started, and that no firewall is "
                "between them"
            )
        time.sleep(POLL_SECONDS)
