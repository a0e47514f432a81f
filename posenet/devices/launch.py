"""How the processes of a run start: by torchrun or srun, whose variables are read here, or by ``--nproc``."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from posenet.errors import ConfigError, PosenetError

STATUS_FILE_VARIABLE = "POSENET_STATUS_FILE"
"""Environment variable with the file into which rank 0 writes its exit status."""
SHUTDOWN_SECONDS = 120
"""Time in which processes can finish their step and save after a stop signal, or end after another one has failed."""
CAUSES = {
    "SIGKILL": "a system that runs out of memory does this, and so does a scheduler: lower data.workers or "
    "train.batch_size, or ask for more memory",
    "SIGABRT": "the lines above name the cause; with NCCL it is most often that a rank has lost or has waited too "
    "long for another one, which ends the process after --timeout minutes",
    "SIGBUS": "shared memory was probably full; lower data.workers or provide more (docker run --shm-size=8g)",
}
"""What is known about a process that a signal has ended, and the remedy."""
STEP_PORT_DISTANCE = 7919
"""Distance of the ports of two successive steps of one job. A prime, so that steps of nearby jobs do not meet."""


def launched_processes(environment: Mapping[str, str]) -> int:
    """The number of processes that torchrun or srun has started together; 1 without a launcher.

    ``ConfigError`` if the variables of the launcher are incomplete or impossible.
    """
    variables = {**environment, **torchrun_variables(environment)}
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return 1
    try:
        rank, world_size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
        if not 0 <= rank < world_size or int(variables.get("LOCAL_RANK", 0)) < 0:
            raise ValueError(f"rank {rank} of {world_size}")
    except ValueError as error:
        raise _unusable(error) from error
    return world_size


def torchrun_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would set for this task of srun, for ``os.environ``; empty if srun has not started several tasks.

    PyTorch reads the rank of a process from these variables. The tasks meet on the first host, unless MASTER_ADDR is
    set. ``ConfigError`` if variables of SLURM are missing or impossible.
    """
    try:
        num_tasks = _num_slurm_tasks(environment)
        if "RANK" in environment or num_tasks == 1:
            return {}
        nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
        # A port that differs between the steps of a job, and between jobs with ids close to each other.
        job, step = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
        port = 20000 + (job + STEP_PORT_DISTANCE * step) % 20000
        return {
            "RANK": environment["SLURM_PROCID"],
            "LOCAL_RANK": environment["SLURM_LOCALID"],
            "WORLD_SIZE": str(num_tasks),
            "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(nodes),
            "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
        }
    except (KeyError, ValueError) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> ConfigError:
    return ConfigError(
        f"the launcher's variables are not usable ({error}); unset them, or start with torchrun, srun or --nproc"
    )


def rank_of_process(environment: Mapping[str, str]) -> int:
    """The number of this process among those that a launcher has started; 0 without a launcher."""
    return int(environment.get("RANK") or environment.get("SLURM_PROCID") or 0)


def is_restarted(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has restarted the processes, or SLURM has requeued the job."""
    return any(int(environment.get(name) or 0) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def was_started_by_us(environment: Mapping[str, str]) -> bool:
    """Whether ``run_processes`` has started this process."""
    return STATUS_FILE_VARIABLE in environment


def restarts_after_failure(environment: Mapping[str, str]) -> bool:
    """Whether a torchrun of the user has started this process; it may start a process again that ends with an error."""
    return "TORCHELASTIC_RUN_ID" in environment and not was_started_by_us(environment)


def _num_slurm_tasks(environment: Mapping[str, str]) -> int:
    """The number of processes that srun has started together; 1 outside a job step."""
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment:
        return 1
    # In the shell of an interactive salloc, which is alone in its step, SLURM_NTASKS counts the tasks of the job.
    return int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)


def first_host(node_list: str) -> str:
    """The first host name of a SLURM node list: ``gpu07`` of ``gpu[07-09,12],big1``."""
    match = re.match(r"[^\[,](?:[^\[,]|\[[^\]]*\])*", node_list)  # commas in brackets separate numbers, others hosts
    if match is None:
        raise ValueError(f"{node_list!r} is not a node list")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", match[0])


def run_processes(count: int, arguments: Sequence[str]) -> int:
    """Run ``posenet ARGUMENTS`` in ``count`` processes on this machine, as torchrun does, until all have ended.

    Ctrl-C, SIGTERM and SIGUSR1 are passed on to the processes. The exit status is 0, or that of the first process that
    failed; after a signal, that of rank 0. ``PosenetError`` if a process was killed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    if hasattr(signal, "SIGUSR1"):  # torchrun forwards only the other two
        signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="posenet-") as folder:
        status_file = Path(folder) / "status"
        os.environ[STATUS_FILE_VARIABLE] = str(status_file)
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
                    f"rank {rank} of {count} was ended by {name}, and with it the other ranks; "
                    f"{CAUSES.get(name, 'find out what has sent this signal')}"
                ) from error
            return failure.exitcode
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[STATUS_FILE_VARIABLE]
    return 0


def record_status(status: int, environment: Mapping[str, str] = os.environ) -> None:
    """Leave the exit status of rank 0 for ``run_processes``, if that has started this process."""
    path = environment.get(STATUS_FILE_VARIABLE)
    if path and environment.get("RANK") == "0":
        Path(path).write_text(str(status), encoding="utf-8")
