"""Starting the processes of a run: what launchers tell in the environment, and torchrun on this machine."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from posenet.devices.launch import (
    RankInfo,
    first_host,
    is_restarted,
    meeting_point,
    rank_info,
    rank_of_process,
    record_status,
    run_processes,
    was_started_by_us,
)
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError, PosenetError
from tests.helpers.process_runs import fork_process, wait_for_exit


def numbers(names: str, values: str) -> dict[str, str]:
    """The variables with these names and values."""
    return dict(zip(names.split(), values.split(), strict=True))


TORCHRUN = numbers("RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT", "5 8 1 gpu01 29400")
SLURM = numbers(
    "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_LOCALID SLURM_JOB_ID SLURM_STEP_ID SLURM_JOB_NODELIST",
    "3 4 4 1 40123 0 gpu[07-08]",
)
OPEN_MPI = numbers(
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE "
    "OMPI_MCA_ess_base_jobid",
    "1 2 1 2 46333953",
)
MPICH = numbers("PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS", "1 2 1 2")
HOROVOD = numbers(
    "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_GLOO_RENDEZVOUS_PORT", "1 2 1 2 41234"
)
PATIENCE_SECONDS = 60


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    "environment, expected, name",
    [
        (TORCHRUN, (5, 8, 1), "torchrun"),
        (without(TORCHRUN, "LOCAL_RANK"), (5, 8, None), "torchrun"),  # of the old launcher
        (TORCHRUN | SLURM, (5, 8, 1), "torchrun"),
        (SLURM, (3, 4, 1), "srun"),
        # The number of processes is that of the step.
        (SLURM | {"SLURM_NTASKS": "8"}, (3, 4, 1), "srun"),
        (OPEN_MPI, (1, 2, 1), "mpirun"),
        # mpirun starts one process on each machine by srun.
        (OPEN_MPI | SLURM, (1, 2, 1), "mpirun"),
        (MPICH, (1, 2, 1), "mpiexec"),
        (HOROVOD, (1, 2, 1), "horovodrun"),
        (HOROVOD | OPEN_MPI, (1, 2, 1), "horovodrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, None), "torchrun"),
        # The shell of an interactive allocation.
        (SLURM | numbers("SLURM_PROCID SLURM_LOCALID SLURM_STEP_NUM_TASKS", "0 0 1"), (0, 1, 0), "srun"),
    ],
)
def test_the_numbers_of_a_process_are_those_of_its_launcher(
    environment: dict[str, str], expected: tuple[int, int, int | None], name: str
) -> None:
    info = rank_info(environment)
    assert info[:3] == expected
    assert info.launcher is not None and info.launcher.name == name
    assert rank_of_process(environment) == info.rank


@pytest.mark.parametrize("environment", [{}, without(SLURM, "SLURM_STEP_ID"), {"WORLD_SIZE": "1"}, {"RANK": ""}])
def test_without_a_launcher_a_process_is_alone(environment: dict[str, str]) -> None:
    assert rank_info(environment) == RankInfo()
    assert rank_of_process(environment) == 0


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"RANK": "0"}, "RANK=0, WORLD_SIZE=,"),
        ({"WORLD_SIZE": "2"}, "RANK=, WORLD_SIZE=2,"),
        (TORCHRUN | {"RANK": "8"}, "RANK=8, WORLD_SIZE=8,"),
        (TORCHRUN | {"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1:"),
        (TORCHRUN | {"RANK": "first"}, "RANK=first,"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE=,"),
        (MPICH | {"PMI_RANK": "2"}, "PMI_RANK=2,"),
        (SLURM | {"SLURM_PROCID": "4"}, "SLURM_PROCID=4,"),
        (without(SLURM, "SLURM_STEP_NUM_TASKS"), "SLURM_STEP_NUM_TASKS=,"),
    ],
)
def test_incomplete_or_impossible_numbers_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_info(environment)


def where(environment: dict[str, str]) -> tuple[str, int]:
    return meeting_point(rank_info(environment), environment)


def test_processes_meet_where_the_user_or_the_launcher_says() -> None:
    assert where(TORCHRUN) == ("gpu01", 29400)
    host, port = where(SLURM)
    assert host == "gpu07" and 20000 <= port < 29000
    assert where(SLURM | {"SLURM_STEP_NODELIST": "gpu08"}) == ("gpu08", port)
    for environment in (SLURM, OPEN_MPI, MPICH, HOROVOD):
        assert where(environment | {"MASTER_ADDR": "here", "MASTER_PORT": "9"}) == ("here", 9)
    assert len({where(SLURM | {"SLURM_JOB_ID": str(job)})[1] for job in range(500, 600)}) > 95
    # On one machine; the port differs between jobs where these have numbers.
    assert where(MPICH) == ("127.0.0.1", 29500)
    others = [OPEN_MPI, OPEN_MPI | {"OMPI_MCA_ess_base_jobid": "46333954"}, HOROVOD]
    assert {where(environment)[0] for environment in others} == {"127.0.0.1"}
    assert len({where(environment)[1] for environment in others}) == 3
    # In a job of SLURM, mpirun puts rank 0 on the first host.
    assert where(SLURM | OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})[0] == "gpu07"


@pytest.mark.parametrize(
    "environment, name",
    [
        (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR"),
        (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT"),
        (TORCHRUN | {"MASTER_PORT": "abc"}, "MASTER_PORT=abc"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR"),  # on two machines
    ],
)
def test_an_unknown_meeting_point_is_refused(environment: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        where(environment)


def test_restarts_are_known() -> None:
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        assert [is_restarted({name: count}) for count in ("", "0", "1")] == [False, False, True]
    assert not is_restarted({})


@pytest.mark.parametrize(
    "node_list, host",
    [
        ("one", "one"),
        ("gpu[07-09,12],big1", "gpu07"),
        ("a,b", "a"),
        ("n[3]", "n3"),
        ("n[1,5].cluster,m2", "n1.cluster"),
        ("rack[1-2]n[03-09],m2", "rack1n03"),
    ],
)
def test_the_first_host_of_a_slurm_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


def test_only_rank_0_of_our_processes_records_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status"
    monkeypatch.setenv("POSENET_STATUS_FILE", str(path))
    monkeypatch.setenv("RANK", "1")
    record_status(STOPPED_STATUS)
    assert not path.exists()
    monkeypatch.setenv("RANK", "0")
    record_status(STOPPED_STATUS)
    assert path.read_text() == str(STOPPED_STATUS)


def run_with_start_code(folder: Path, code: str, *arguments: str) -> int:
    """Fork a process that runs ``posenet ARGUMENTS`` in two processes; each executes ``code`` when it starts.

    An error of ``run_processes`` is written to ``output.txt``. Returns the process id.
    """
    (folder / "sitecustomize.py").write_text(f"import os\nif 'RANK' in os.environ:\n    {code}\n")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def run() -> None:
        try:
            sys.exit(run_processes(2, arguments))
        except PosenetError as error:
            print(error)
            can_log = logging.getLogger("posenet").isEnabledFor(logging.ERROR)  # the tool logs the error
            sys.exit(2 if can_log and not was_started_by_us(os.environ) else 1)

    return fork_process(run, folder / "output.txt")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")


@pytest.mark.slow
def test_processes_that_torchrun_starts_get_the_arguments_and_their_status_is_returned(tmp_path: Path) -> None:
    pid = run_with_start_code(tmp_path, "pass", "config", "--rdzv-id", "7")
    assert wait_for_exit(pid) == 2
    output = (tmp_path / "output.txt").read_text()
    # torchrun may end the second process before it can say the same.
    assert "error: --rdzv-id " in output
    assert "Traceback" not in output and "elastic" not in output


def test_a_process_that_is_killed_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    code = "import signal, time; signal.raise_signal(signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(60)"
    started = time.monotonic()
    assert wait_for_exit(run_with_start_code(tmp_path, code, "--version")) == 2
    output = (tmp_path / "output.txt").read_text()
    assert "rank 1 of 2" in output and "SIGKILL" in output and "train.batch_size" in output
    assert time.monotonic() - started < PATIENCE_SECONDS / 2


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_to_the_launcher_stops_every_process(tmp_path: Path, number: int) -> None:
    """SIGUSR1 becomes SIGTERM. After SIGKILL, the processes notice by themselves that nobody waits for them."""
    (tmp_path / "start.py").write_text(
        "import os, pathlib, signal, time\n"
        "from posenet.devices.launch import record_status, stop_with_parent\n"
        "file = pathlib.Path(__file__).with_name(os.environ['RANK'])\n"
        "def stop(number, frame):\n"
        f"    record_status({STOPPED_STATUS})\n"
        "    file.with_suffix('.stopped').touch()\n"
        f"    os._exit({STOPPED_STATUS})\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, stop)\n"
        "stop_with_parent()\n"
        "file.with_suffix('.ready').touch()\n"
        f"time.sleep({PATIENCE_SECONDS})\n"
    )
    launcher = run_with_start_code(tmp_path, "import start", "--version")
    wait_for_files(tmp_path, "*.ready")
    os.kill(launcher, number)
    status = -signal.SIGKILL if number == signal.SIGKILL else STOPPED_STATUS
    assert wait_for_exit(launcher) == status, (tmp_path / "output.txt").read_text()
    wait_for_files(tmp_path, "*.stopped")


def wait_for_files(folder: Path, pattern: str) -> None:
    """Wait for a file of each of two processes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob(pattern))) < 2:
        assert time.monotonic() < deadline, (folder / "output.txt").read_text()
        time.sleep(0.05)
