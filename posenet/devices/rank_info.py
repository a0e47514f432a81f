"""The rank that torchrun, SLURM or ``torch.distributed.launch`` assigns to this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from posenet.errors import ConfigError

STEP_PORT_DISTANCE = 7919
"""Distance of the ports of two successive steps of one job. A prime, so that steps of nearby jobs do not meet."""


@dataclass(frozen=True)
class RankInfo:
    """The rank of a process and how it connects to the others."""

    rank: int  # index among all processes of the run
    world_size: int  # number of processes of the run
    local_rank: int  # index among the processes on the same machine
    init_method: str = "env://"  # URL at which the processes meet, as in ``torch.distributed``
    restarts: int = 0  # number of times that an elastic launcher has restarted the run
    run_id: str = ""  # differs between runs that may find the same store; torchrun has one store per run
    hosts_store: bool = False  # whether this process hosts the store of a ``tcp://`` URL


SINGLE_PROCESS = RankInfo(rank=0, world_size=1, local_rank=0, init_method="tcp://127.0.0.1:0", hosts_store=True)
"""The only process of a run. No other process connects to it, so it uses any free port (0)."""


def rank_info_from_environment(environment: Mapping[str, str], local_rank: int | None = None) -> RankInfo | None:
    """Read the rank from environment variables; None if no launcher has started this process.

    Args:
        local_rank: value of the ``--local-rank`` flag that ``torch.distributed.launch`` passes; it overrides the
            environment.

    Raises:
        ConfigError: variables are missing, or their values are impossible.
    """
    try:
        if "RANK" in environment and "WORLD_SIZE" in environment:
            info = _torchrun_rank_info(environment, local_rank)
        elif "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment and _num_step_tasks(environment) > 1:
            info = _slurm_rank_info(environment)
        else:
            return None
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"the launcher's environment is incomplete ({error}); start with torchrun, srun or --nproc"
        ) from error
    if not 0 <= info.rank < info.world_size or info.local_rank < 0:
        raise ConfigError(
            f"the launcher's environment is impossible (rank {info.rank} of {info.world_size}, local rank "
            f"{info.local_rank}); start with torchrun, srun or --nproc"
        )
    return info


def _torchrun_rank_info(environment: Mapping[str, str], local_rank: int | None) -> RankInfo:
    """The rank that torchrun or ``torch.distributed.launch`` assigns."""
    return RankInfo(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", 0)) if local_rank is None else local_rank,
        restarts=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )


def _slurm_rank_info(environment: Mapping[str, str]) -> RankInfo:
    """The rank that srun assigns.

    The processes meet on the first host of the job step, unless MASTER_ADDR and MASTER_PORT name another host and port.
    Rank 0 may run on another host than the first (``srun -m arbitrary``, heterogeneous steps), and no variable names
    that host. A process on the first host therefore hosts the store, whichever rank it has. A host that MASTER_ADDR
    names is that of rank 0, as in ``torch.distributed``.
    """
    rank = int(environment["SLURM_PROCID"])
    local_rank = int(environment["SLURM_LOCALID"])
    job = int(environment["SLURM_JOB_ID"])
    step = int(environment["SLURM_STEP_ID"])
    host = environment.get("MASTER_ADDR")
    hosts_store = rank == 0
    if not host:
        host = first_host(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
        if "SLURMD_NODENAME" in environment:
            hosts_store = environment["SLURMD_NODENAME"] == host and local_rank == 0
    port = environment.get("MASTER_PORT") or _port_of_step(job, step)
    return RankInfo(
        rank=rank,
        world_size=_num_step_tasks(environment),
        local_rank=local_rank,
        init_method=f"tcp://{host}:{port}",
        restarts=int(environment.get("SLURM_RESTART_COUNT", 0)),
        run_id=f"{job}.{step}",
        hosts_store=hosts_store,
    )


def _port_of_step(job: int, step: int) -> int:
    """A port that differs between the steps of a job, and between jobs with ids close to each other."""
    return 20000 + (job + STEP_PORT_DISTANCE * step) % 20000


def _num_step_tasks(environment: Mapping[str, str]) -> int:
    """The number of processes that srun has started together.

    SLURM_NTASKS is the number of tasks that the job has asked for. The shell of an interactive ``salloc`` has it too,
    although it is the only task of its step.
    """
    return int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)


def first_host(node_list: str) -> str:
    """The first host name of a SLURM node list: ``gpu07`` of ``gpu[07-09,12],big1``."""
    match = re.fullmatch(r"(?P<prefix>[^\[,]+)(?:\[(?P<number>[^\],-]+)[^\]]*\])?(?P<rest>.*)", node_list)
    if match is None:
        raise ValueError(f"{node_list!r} is not a node list")
    if match["number"] is None:
        return match["prefix"]
    suffix = match["rest"].partition(",")[0]
    return match["prefix"] + match["number"] + suffix
