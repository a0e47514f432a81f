"""What launchers say about the processes of a run in the environment, and starting processes on this machine."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from posenet.errors import ConfigError, PosenetError

STATUS_FILE_VARIABLE = "POSENET_STATUS_FILE"
"""Environment variable with the file into which rank 0 writes its exit status."""
PARENT_VARIABLE = "POSENET_PARENT"
"""Environment variable with the process that has started those of ``--nproc``."""
_JOB_NUMBERS = "SLURM_JOB_ID SLURM_STEP_ID PMIX_NAMESPACE OMPI_MCA_ess_base_jobid HOROVOD_GLOO_RENDEZVOUS_PORT"
"""Variables that are the same in all processes of a job, and together differ between jobs."""


class Launcher(NamedTuple):
    """The variables in which a launcher gives each process its numbers."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    Launcher("mpirun", *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Last, because mpirun starts its processes by srun, which counts machines then.
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
"""torchrun, Horovod, Open MPI, MPICH and SLURM."""


class RankInfo(NamedTuple):
    """The numbers of this process among those that a launcher has started together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    """Its number among those of this machine; None if the launcher does not say it."""
    launcher: Launcher | None = None


def rank_info(environment: Mapping[str, str]) -> RankInfo:
    """The numbers that a launcher has given to this process; without a launcher, those of a process alone.

    ``ConfigError`` if they are incomplete or impossible.
    """
    launcher = _launcher(environment)
    if launcher is None:
        return RankInfo()
    values = {name: environment.get(name, "") for name in (launcher.rank, launcher.world_size, launcher.local_rank)}
    rank, world_size, local_rank = values.values()
    try:
        info = RankInfo(int(rank), int(world_size), int(local_rank) if local_rank else None, launcher)
        if not (0 <= info.rank < info.world_size and 0 <= (info.local_rank or 0) < info.world_size):
            raise ValueError
    except ValueError:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ConfigError(
            f"{shown}: a launcher numbers its processes from 0 and says how many there are; start all with one such as "
            "torchrun, or unset these variables"
        ) from None
    return info


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    """The launcher that has started this process."""
    for launcher in LAUNCHERS:
        # Outside a step of a job, srun has started nothing: the variables are those of the job.
        is_possible = launcher.name != "srun" or "SLURM_STEP_ID" in environment
        world_size = environment.get(launcher.world_size) or "1"
        if is_possible and (environment.get(launcher.rank) or world_size != "1"):
            return launcher
    return None


def meeting_point(info: RankInfo, environment: Mapping[str, str]) -> tuple[str, int]:
    """The address and the port at which the processes of a launcher find each other; rank 0 listens there.

    MASTER_ADDR and MASTER_PORT decide. Without them, tasks of srun meet on the first host of their step, and
    processes that are all on this machine at 127.0.0.1; the port is derived from the number of the job.
    ``ConfigError`` if the address is not known, or the port is none.
    """
    assert info.launcher is not None
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if info.launcher.name != "torchrun":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
        is_local = environment.get(info.launcher.local_size) == str(info.world_size)
        address = address or ("127.0.0.1" if is_local else first_host(nodes))
        port = port or str(_port_of_job(environment))
    if not address or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"MASTER_ADDR={address} MASTER_PORT={port} does not say where the processes meet: set the machine of rank "
            "0 and a free port of it for all (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500)"
        )
    return address, int(port)


def _port_of_job(environment: Mapping[str, str]) -> int:
    """A port that differs, but for one chance in thousands, between the jobs of a machine and the steps of a job.

    It is below 32768, from where systems choose ports for connections; that of PyTorch if the job has no number.
    """
    numbers = [environment[name] for name in _JOB_NUMBERS.split() if environment.get(name)]
    return 20000 + zlib.crc32(" ".join(numbers).encode()) % 9000 if numbers else 29500


def first_host(node_list: str) -> str:
    """The first host name of a SLURM node list: ``gpu07`` of ``gpu[07-09,12],big1``."""
    # Commas in brackets separate numbers, others hosts.
    return re.sub(r"\[([^\],-]+)[^\]]*\]|,.*", r"\1", node_list)


def rank_of_process(environment: Mapping[str, str]) -> int:
    """The number of this process among those that a launcher has started; 0 if that is not known."""
    launcher = _launcher(environment)
    text = environment.get(launcher.rank, "") if launcher else ""
    return int(text) if text.isdecimal() else 0


def is_restarted(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has restarted the processes, or SLURM has requeued the job."""
    counts = map(environment.get, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(int(count or 0) > 0 for count in counts)


def was_started_by_us(environment: Mapping[str, str]) -> bool:
    """Whether ``run_processes`` has started this process."""
    return STATUS_FILE_VARIABLE in environment


def run_processes(count: int, arguments: Sequence[str]) -> int:
    """Run ``posenet ARGUMENTS`` in ``count`` processes on this machine with torchrun, until all have ended.

    Stop signals are passed on to them. The exit status is 0, or that of the first process that failed; after a signal,
    that of rank 0. ``PosenetError`` if a process was killed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Seconds in which they can finish their step and save after a stop signal, or end after another one has failed.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    if hasattr(signal, "SIGUSR1"):  # torchrun forwards only the other two
        signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="posenet-") as folder:
        status_file = Path(folder) / "status"
        os.environ[STATUS_FILE_VARIABLE] = str(status_file)
        os.environ[PARENT_VARIABLE] = str(os.getpid())
        logging.disable()  # the processes report their errors themselves
        try:
            # Without "--", torchrun takes some flags of the tool for its own.
            torchrun.main(["--standalone", f"--nproc-per-node={count}", "--module", "--", "posenet", *arguments])
        except SignalException as error:
            # torchrun does not tell how the processes have ended.
            return int(status_file.read_text(encoding="utf-8")) if status_file.exists() else 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:
                name = signal.Signals(-failure.exitcode).name
                raise PosenetError(
                    f"rank {rank} of {count} was ended by {name}, and with it the others; lines above may say why; "
                    "without memory (SIGKILL, SIGBUS), lower data.workers or train.batch_size"
                ) from error
            return failure.exitcode
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[STATUS_FILE_VARIABLE], os.environ[PARENT_VARIABLE]
    return 0


def stop_with_parent() -> None:
    """Let SIGTERM stop this process, which ``run_processes`` has started, when that has been killed.

    Otherwise the ranks would train on, and nobody would know of them.
    """

    def watch() -> None:
        while os.getppid() == int(os.environ[PARENT_VARIABLE]):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def record_status(status: int) -> None:
    """Leave the exit status of rank 0 for ``run_processes``, if that has started this process."""
    path = os.environ.get(STATUS_FILE_VARIABLE)
    if path and os.environ.get("RANK") == "0":
        Path(path).write_text(str(status), encoding="utf-8")
