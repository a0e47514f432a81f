"""Process groups on this machine: several forked processes, or this process alone."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.devices.runtime import Runtime
from posenet.errors import PosenetError
from tests.helpers.process_runs import fork_process, wait_for_exit

TIMEOUT_MINUTES = 0.5
"""How long a process waits for the others in a collective call."""


def need_processes() -> Any:
    """``posenet.devices.parallel``; skips the test in a copy of the package without it, see ``tests/test_rooms.py``."""
    return pytest.importorskip("posenet.devices.parallel", reason="needs several processes")


def free_port() -> int:
    """A port of 127.0.0.1 at which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fork_ranks(world_size: int, task: Callable[[int], Any], folder: Path) -> list[int]:
    """Call ``task(rank)`` in forked processes with the environment of torchrun; return their process ids.

    What they write to standard output and standard error goes to ``folder / "RANK.txt"``.
    """
    need_processes()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()

    def run_rank(rank: int) -> None:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
        os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
        task(rank)

    return [fork_process(lambda rank=rank: run_rank(rank), folder / f"{rank}.txt") for rank in range(world_size)]


def run_in_processes(world_size: int, folder: Path, task: Callable[[Any], Any]) -> list[Any]:
    """Call ``task(runtime)`` in processes of one group; return the results in rank order, which pass through files."""

    def run_rank(rank: int) -> None:
        runtime = need_processes().DistributedRuntime(TIMEOUT_MINUTES)
        torch.save(task(runtime), folder / f"{rank}.pt")
        runtime.close()

    pids = fork_ranks(world_size, run_rank, folder)
    statuses = [wait_for_exit(pid) for pid in pids]
    outputs = "\n".join(f"rank {rank}: {(folder / f'{rank}.txt').read_text()}" for rank in range(world_size))
    assert statuses == [0] * world_size, f"statuses {statuses}\n{outputs}"
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def errors_in_processes(world_size: int, folder: Path, task: Callable[[Any], Any]) -> list[str]:
    """Like ``run_in_processes``, but the results are the errors of the ranks: ``""``, or type and message."""

    def describe(runtime: Runtime) -> str:
        try:
            task(runtime)
        except (PosenetError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return run_in_processes(world_size, folder, describe)


@contextlib.contextmanager
def single_process_group() -> Iterator[Any]:
    """Yield a distributed runtime whose process group is this process alone."""
    os.environ.pop("RANK", None)
    runtime = need_processes().DistributedRuntime(TIMEOUT_MINUTES)
    try:
        yield runtime
    finally:
        runtime.close()
