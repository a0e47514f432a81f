"""Starting the processes of a distributed run on this machine, without torchrun or SLURM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # PyTorch does not list it in __all__
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from posenet.devices.rank_info import RankInfo
from posenet.devices.signals import STOPPED_STATUS, stop_signal_handler
from posenet.errors import TrainingError

GRACE_SECONDS = 10.0
"""Seconds in which the other processes can end by themselves after one of them has failed."""


def launch(world_size: int, task: Callable[..., None], *args: Any, start_method: str = "spawn") -> int:
    """Run ``task(rank_info, *args)`` in ``world_size`` processes on this machine and wait until all have ended.

    Stop signals are forwarded to the processes, which then stop by themselves.

    Returns:
        The exit status: ``STOPPED_STATUS`` if a process ended with it, and else 0.

    Raises:
        TrainingError: a process exited with an error status or was killed; the others have been terminated.
        ProcessRaisedException: ``task`` raised an exception in one of the processes.
    """
    # This process hosts the store, as torchrun's agent does, so that the port is known to be free.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    context = start_processes(  # type: ignore[no-untyped-call]  # PyTorch has no types for it
        _run_rank, (environment, task, args), world_size, join=False, start_method=start_method
    )

    def forward_signal(number: int, frame: FrameType | None) -> None:
        for process in context.processes:
            if process.is_alive():
                os.kill(process.pid, _forwarded_signal(number))

    with stop_signal_handler(forward_signal):
        try:
            while not context.join(grace_period=GRACE_SECONDS):
                pass
        except ProcessExitedException as error:
            if error.exit_code == STOPPED_STATUS:
                return STOPPED_STATUS
            how = f"was killed by {error.signal_name}" if error.signal_name else f"exited with status {error.exit_code}"
            raise TrainingError(
                f"rank {error.error_index} of {world_size} {how}, and the other ranks were ended; fix the cause that "
                "its log names, or continue from the last checkpoint with --resume"
            ) from error
    return 0


def _forwarded_signal(number: int) -> int:
    """The signal to send to the processes after a signal to the launcher: SIGTERM after Ctrl-C, else the same one.

    A terminal sends Ctrl-C to the processes too, and a second SIGINT would interrupt their training step.
    """
    return signal.SIGTERM if number == signal.SIGINT else number


def _run_rank(rank: int, environment: Mapping[str, str], task: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    rank_info = RankInfo(rank, world_size=int(environment["WORLD_SIZE"]), local_rank=rank)
    task(rank_info, *args)
