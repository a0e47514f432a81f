"""Processes that are started without torchrun or SLURM."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posenet.devices.distributed import DistributedRuntime
from posenet.devices.launch import launch
from posenet.devices.rank_info import RankInfo, rank_info_from_environment
from posenet.devices.signals import STOP_SIGNALS, STOPPED_STATUS
from posenet.errors import TrainingError
from tests.helpers.process_runs import fork_process, wait_for_exit

TIMEOUT_SECONDS = 60


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_process_gets_its_rank_by_argument_and_environment(tmp_path: Path) -> None:
    def write_rank(rank_info: RankInfo, name: str) -> None:
        assert rank_info == rank_info_from_environment(os.environ)
        (tmp_path / f"{name}{rank_info.rank}").write_text(str(rank_info))

    launch(2, write_rank, "rank", start_method="fork")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        f"rank{rank}": str(RankInfo(rank, 2, rank)) for rank in range(2)
    }


def test_a_process_that_exits_with_an_error_is_named() -> None:
    with pytest.raises(TrainingError, match="rank 1 of 2 exited with status 2"):
        launch(2, lambda rank_info: sys.exit(2 * rank_info.rank), start_method="fork")


def test_the_status_of_a_stopped_run_is_passed_on() -> None:
    def stop(rank_info: RankInfo) -> None:
        sys.exit(0 if rank_info.rank else STOPPED_STATUS)

    assert launch(2, stop, start_method="fork") == STOPPED_STATUS
    assert launch(2, lambda rank_info: None, start_method="fork") == 0


def test_a_process_that_is_killed_is_named_and_the_others_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenet.devices.launch.GRACE_SECONDS", 0.1)

    def die_or_wait(rank_info: RankInfo) -> None:
        if rank_info.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(TIMEOUT_SECONDS)

    started = time.monotonic()
    with pytest.raises(TrainingError, match="rank 1 of 2 was killed by SIGKILL"):
        launch(2, die_or_wait, start_method="fork")
    assert time.monotonic() - started < TIMEOUT_SECONDS / 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "number, expected",
    [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM), (signal.SIGUSR1, signal.SIGUSR1)],
)
def test_stop_signals_reach_every_process_and_ctrl_c_as_sigterm(tmp_path: Path, number: int, expected: int) -> None:
    def wait_for_signal(rank_info: RankInfo) -> None:
        received: list[int] = []
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, lambda number, frame: received.append(number))
        (tmp_path / f"{rank_info.rank}.ready").touch()
        wait_until(lambda: bool(received))
        (tmp_path / f"{rank_info.rank}.received").write_text(str(int(received[0])))

    launcher = fork_process(lambda: launch(2, wait_for_signal, start_method="fork"))
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2 and catches(launcher, signal.SIGTERM))
    os.kill(launcher, number)
    assert wait_for_exit(launcher) == 0
    assert [int((tmp_path / f"{rank}.received").read_text()) for rank in range(2)] == [expected, expected]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], base=16) for line in lines if line.startswith("SigCgt:"))
    return bool(mask >> (number - 1) & 1)


def test_the_launcher_restores_the_signal_handlers() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    launch(1, lambda rank_info: None, start_method="fork")
    with pytest.raises(TrainingError):
        launch(1, lambda rank_info: sys.exit(1), start_method="fork")
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_the_processes_can_form_a_group() -> None:
    def sum_ranks(rank_info: RankInfo) -> None:
        runtime = DistributedRuntime(torch.device("cpu"), rank_info, timeout_minutes=0.5)
        assert runtime.gather_objects(rank_info.rank) == [0, 1]
        runtime.close()

    launch(2, sum_ranks, start_method="fork")


def test_launchers_that_run_at_the_same_time_use_different_ports(tmp_path: Path) -> None:
    def write_port(rank_info: RankInfo, name: str) -> None:
        (tmp_path / name).write_text(os.environ["MASTER_PORT"])

    def launch_another(rank_info: RankInfo) -> None:
        write_port(rank_info, "outer")
        launch(1, write_port, "inner", start_method="fork")

    launch(1, launch_another, start_method="fork")
    assert (tmp_path / "outer").read_text() != (tmp_path / "inner").read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_stop_signal_after_one_process_has_ended_reaches_the_other(tmp_path: Path) -> None:
    def end_or_wait(rank_info: RankInfo) -> None:
        received: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        (tmp_path / f"{rank_info.rank}.pid").write_text(str(os.getpid()))
        if rank_info.rank == 1:
            wait_until(lambda: bool(received))
            (tmp_path / "received").touch()

    def has_ended(rank: int) -> bool:
        path = tmp_path / f"{rank}.pid"
        return path.exists() and bool(path.read_text()) and not Path(f"/proc/{path.read_text()}").exists()

    launcher = fork_process(lambda: launch(2, end_or_wait, start_method="fork"))
    wait_until(lambda: has_ended(0) and (tmp_path / "1.pid").exists() and catches(launcher, signal.SIGTERM))
    os.kill(launcher, signal.SIGTERM)
    assert wait_for_exit(launcher) == 0
    assert (tmp_path / "received").exists()
