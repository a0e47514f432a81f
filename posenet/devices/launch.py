"""Which process this is: as torchrun, SLURM or the old launcher say; and starting processes without any of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import multiprocessing

from posenet.devices.signals import STOP_SIGNALS
from posenet.errors import TrainingError

GRACE_SECONDS = 10.0
"""How long processes may take to end by themselves once one of them has failed."""


def launch(count: int, task: Callable[..., None], *args: Any, start_method: str = "spawn") -> None:
    """Run ``task(*args)`` in ``count`` processes of this machine, each of which ``rank_info_from_environment`` tells its place.

    Stop signals are passed on, and the processes end in their own time.

    Raises:
        TrainingError: one of them ended badly; the others have been ended.
        ProcessRaisedException: one of them raised what ``task`` does not handle.
    """
    # The store lives here, so no port has to be guessed; the processes find it as torchrun's find their agent's.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    processes = multiprocessing.start_processes(
        _run, (environment, task, args), count, join=False, start_method=start_method
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in processes.processes:
            if process.is_alive():
                # A terminal has sent Ctrl-C to them itself, and a second one would end them at once.
                os.kill(process.pid, signal.SIGTERM if number == signal.SIGINT else number)

    previous = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        while not processes.join(grace_period=GRACE_SECONDS):
            pass
    except multiprocessing.ProcessExitedException as error:
        how = f"was ended by {error.signal_name}" if error.signal_name else f"ended with status {error.exit_code}"
        raise TrainingError(
            f"rank {error.error_index} of {count} {how}, and the others with it; mend what it names, "
            "or go on from the last checkpoint with --resume"
        ) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(rank: int, environment: Mapping[str, str], task: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    task(*args)
