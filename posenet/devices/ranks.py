"""The processes of a run: what their launcher says in the environment, what they tell each other, and joining them.

This module does not import PyTorch: a single process predicts with an exported file without it.
"""

import contextvars
import functools
import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from posenet.errors import ConfigError, OtherRankError, PosenetError

DEFAULT_TIMEOUT_MINUTES = 10.0
"""Time for which a rank waits for the others in a collective call."""
SHARE_TIMEOUT_MINUTES = 24 * 60.0
"""Time for which a rank that has predicted its share waits for the others: a launcher ends all if one fails."""
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),  # Open MPI
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH
    # Last, because mpirun starts its processes by srun, which counts machines then.
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
}
"""Launchers, and the variables in which each gives a process its rank, the world size, and both on its machine."""
_JOB_NUMBERS = "SLURM_JOB_ID SLURM_STEP_ID PMIX_NAMESPACE OMPI_MCA_ess_base_jobid HOROVOD_GLOO_RENDEZVOUS_PORT"
"""Variables that are the same in all processes of a job, and together differ between jobs."""

Result = TypeVar("Result")
Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])
_is_running = contextvars.ContextVar("_is_running", default=False)


class RankInfo(NamedTuple):
    """The numbers of this process among those that a launcher has started together; those of a process alone."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    """Its number among those of this machine; None if the launcher does not say it."""
    launcher: str = ""
    is_local: bool = False
    """Whether the launcher says that all processes are on this machine."""


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """What the launcher says of this process; ``ConfigError`` if that is incomplete or impossible."""
    for launcher, names in LAUNCHERS.items():
        rank, world_size, local_rank, local_size = (environment.get(name, "") for name in names)
        # Outside a step of a job, srun has started nothing: the variables are those of the job.
        is_possible = launcher != "srun" or "SLURM_STEP_ID" in environment
        if not is_possible or (not rank and world_size in ("", "1")):
            continue
        try:
            local = int(local_rank) if local_rank else None
            info = RankInfo(int(rank), int(world_size), local, launcher, local_size == world_size)
            if not (0 <= info.rank < info.world_size and 0 <= (local or 0) < info.world_size):
                raise ValueError
        except ValueError:
            shown = ", ".join(f"{name}={environment.get(name, '')}" for name in names[:3])
            raise ConfigError(
                f"{shown}: a launcher numbers its processes from 0 and says how many there are; start all with one "
                "such as torchrun, or unset these variables"
            ) from None
        return info
    return RankInfo()


def rank_of_process(environment: Mapping[str, str]) -> int:
    """The rank of this process; 0 if the launcher says nothing possible."""
    try:
        return rank_info(environment).rank
    except ConfigError:
        return 0


def is_restarted(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has restarted the processes, or SLURM has requeued the job."""
    counts = map(environment.get, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(int(count or 0) > 0 for count in counts)


def rendezvous_address(info: RankInfo, environment: Mapping[str, str]) -> tuple[str, int]:
    """The address and the port at which the processes of a launcher meet; rank 0 listens there.

    MASTER_ADDR and MASTER_PORT decide. Without them, processes that are all on this machine meet at 127.0.0.1, and
    those of SLURM on the first host of their step. The port is derived from the number of the job: it is below 32768,
    from where systems choose ports for connections, or that of PyTorch where the job has no number.

    ``ConfigError`` if the address is not known, or the port is none.
    """
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if info.launcher != "torchrun":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
        numbers = " ".join(environment[name] for name in _JOB_NUMBERS.split() if environment.get(name))
        address = address or ("127.0.0.1" if info.is_local else first_host(nodes))
        port = port or str(20000 + zlib.crc32(numbers.encode()) % 9000 if numbers else 29500)
    if not address or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"MASTER_ADDR={address} MASTER_PORT={port} does not say where the processes meet: set the machine of rank "
            "0 and a free port of it for all (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500)"
        )
    return address, int(port)


def first_host(node_list: str) -> str:
    """The first host name of a SLURM node list: ``gpu07`` of ``gpu[07-09,12],big1``."""
    # Commas in brackets separate numbers, others hosts.
    return re.sub(r"\[([^\],-]+)[^\]]*\]|,.*", r"\1", node_list)


class Ranks:
    """All processes of a run, as one of them sees them; here a single one."""

    rank = 0
    world_size = 1
    local_rank = 0  # among the processes of this machine

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes the files of a run."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """The part of this rank: every ``world_size``-th item, so that all ranks get about as many of each kind."""
        return items[self.rank :: self.world_size]

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0."""
        return value

    def raise_on_all(self, error: Exception | None) -> None:
        """End all ranks if one of them has an error. All ranks call this at the same point; None means no error.

        Raises:
            Exception: ``error``, on the first rank that has one.
            OtherRankError: on all other ranks.
        """
        failed = [rank for rank, has_error in enumerate(self.gather_objects(error is not None)) if has_error]
        if not failed:
            return
        if error is not None and self.rank == failed[0]:
            raise error
        raise OtherRankError(f"rank {failed[0]} has failed and reports why")

    def run_on_all(self, function: Callable[[], Result]) -> Result:
        """The result of a function that every rank calls. If it fails on one, all ranks end; see ``raise_on_all``.

        Errors are ``PosenetError`` and ``OSError``. Any other exception is a fault of the program: it is not shared,
        and ends the other ranks when this one ends.
        """
        error = None
        try:
            result = function()
        except (PosenetError, OSError) as caught:
            error = caught
        self.raise_on_all(error)
        return result

    def run_on_main(self, function: Callable[[], Result]) -> Result | None:
        """The result of a function that rank 0 calls; None on the other ranks. Errors: see ``run_on_all``."""
        return self.run_on_all(lambda: function() if self.is_main else None)

    def close(self) -> None:
        """Leave the processes, at the end of a run."""


def join_ranks(timeout_minutes: float, meet_minutes: float = DEFAULT_TIMEOUT_MINUTES) -> Ranks | None:
    """Join the processes of the process group that exists, or else those that a launcher has started with this one.

    None if this process is alone; it does not import PyTorch then. Arguments and errors: see ``DistributedRuntime``.
    """
    distributed = sys.modules.get("torch.distributed")
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not has_group and rank_info(os.environ).world_size == 1:
        return None
    from posenet.devices.parallel import DistributedRuntime

    return DistributedRuntime(timeout_minutes, meet_minutes)


def run_in_all_processes(
    parameter: str, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES
) -> Callable[[Function], Function]:
    """A decorator: the function gets those of ``join_ranks`` as the argument ``parameter``, unless the caller gives it.

    So each process calls the function, and all calls are one run. A call within a run, as in a callback, which only
    rank 0 makes, concerns this process alone. After an error the processes stay joined: leaving could wait for one
    that hangs.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            is_outermost = not _is_running.get()
            token = _is_running.set(True)
            try:
                if is_outermost and options.get(parameter) is None and (ranks := join_ranks(timeout_minutes)):
                    result = function(*args, **options | {parameter: ranks})
                    ranks.close()
                    return result
                return function(*args, **options)
            finally:
                _is_running.reset(token)

        return cast(Function, call)

    return decorate
