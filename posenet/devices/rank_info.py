"""The rank of this process, as torchrun, SLURM or the old launcher assigns it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from posenet.errors import ConfigError

SINGLE_PROCESS_INIT_METHOD = "tcp://127.0.0.1:0"
"""Where a process without others meets itself: any free port."""


@dataclass(frozen=True)
class RankInfo:
    """A process among others.

    Attributes:
        rank, world_size: its number, and how many there are.
        local_rank: its number on its machine.
        init_method: where the processes meet, as ``torch.distributed`` spells it.
        restarts: how often an elastic launcher has started the run again.
    """

    rank: int
    world_size: int
    local_rank: int
    init_method: str = "env://"
    restarts: int = 0


def rank_info_from_environment(environment: Mapping[str, str], local_rank: int | None = None) -> RankInfo | None:
    """The place that the environment assigns; None where no launcher has started this process.

    Args:
        local_rank: the old launcher's ``--local-rank``, which wins.

    Raises:
        ConfigError: an environment that is incomplete or makes no sense.
    """
    env = environment
    try:
        if "RANK" in env and "WORLD_SIZE" in env:
            own = int(env.get("LOCAL_RANK", 0)) if local_rank is None else local_rank
            place = RankInfo(
                int(env["RANK"]), int(env["WORLD_SIZE"]), own, restarts=int(env.get("TORCHELASTIC_RESTART_COUNT", 0))
            )
        # A shell inside an allocation has SLURM_NTASKS too; only srun tells a task its number.
        elif "SLURM_PROCID" in env and "SLURM_STEP_ID" in env and int(env.get("SLURM_NTASKS", 1)) > 1:
            place = RankInfo(
                int(env["SLURM_PROCID"]),
                int(env["SLURM_NTASKS"]),
                int(env["SLURM_LOCALID"]),
                _slurm_meeting_point(env),
                int(env.get("SLURM_RESTART_COUNT", 0)),
            )
        else:
            return None
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"the launcher's environment is incomplete ({error}); start with torchrun, srun or --nproc"
        ) from error
    if not 0 <= place.rank < place.world_size or place.local_rank < 0:
        raise ConfigError(
            f"the launcher's environment makes no sense (rank {place.rank} of {place.world_size}); start with "
            "torchrun, srun or --nproc"
        )
    return place


def _slurm_meeting_point(env: Mapping[str, str]) -> str:
    host = env.get("MASTER_ADDR") or first_host(env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"])
    # Jobs that share a machine get ports of their own.
    port = env.get("MASTER_PORT") or 20000 + int(env["SLURM_JOB_ID"]) % 20000
    return f"tcp://{host}:{port}"


def first_host(nodes: str) -> str:
    """The first name of a SLURM node list such as ``gpu[07-09,12],big1``."""
    name, first, rest = re.fullmatch(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?(.*)", nodes).groups()
    return name + (first or "") + (rest.partition(",")[0] if first else "")
