"""tools/train_distributed.py under torchrun on two machines, restarted by torchrun, and without a launcher."""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from posenet.devices.rank_info import RankInfo

from posenet.checkpoints.file import read_checkpoint
from posenet.cli import train_distributed
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError
from tests.helpers.tiny_training import SHORT_RUN

SCRIPT = Path(__file__).parents[2] / "tools" / "train_distributed.py"
Start = Callable[..., subprocess.Popen[bytes]]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TIMEOUT_SECONDS = 150
"""Time limit of a run; most need about ten seconds."""

SCRIPT_THAT_KILLS_RANK_1_ONCE = """
import os, signal, sys
from posenet.cli.main import run_tool
from posenet.training.train_step import TrainStep

train, calls = TrainStep.__call__, []

def train_or_die(self, batches):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return train(self, batches)

TrainStep.__call__ = train_or_die
sys.exit(run_tool("train-distributed"))
"""


@pytest.fixture
def start(stores: dict[str, Path], tmp_path: Path) -> Iterator[Start]:
    """A function that starts a command with the options of a tiny run; its output is in ``NAME.txt``."""
    processes = []
    settings = [*SHORT_RUN, f"data.train={stores['train']}", f"data.val={stores['val']}"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    environment["OMP_NUM_THREADS"] = "1"

    def start_command(name: str, command: Sequence[str | Path], *options: str) -> subprocess.Popen[bytes]:
        run_options = ["-p", str(tmp_path / "run"), *options, "--device", "cpu", "--set", *settings]
        with open(tmp_path / f"{name}.txt", "w") as output:
            process = subprocess.Popen(
                [*map(str, command), *run_options], stdout=output, stderr=output, env=environment
            )
        processes.append(process)
        return process

    yield start_command
    for process in processes:
        if process.poll() is None:
            process.kill()


def find_free_port() -> int:
    """A port that no other program takes before the test does: systems choose ports above these for connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) != 0:
                return port


def test_two_machines_with_two_processes_each_train_one_network(start: Start, tmp_path: Path) -> None:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{find_free_port()}", "--rdzv-id", "test"]
    command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", *rendezvous, SCRIPT]
    machines = [start(name, command) for name in ("one", "two")]
    statuses = [machine.wait(TIMEOUT_SECONDS) for machine in machines]
    output = "".join((tmp_path / f"{name}.txt").read_text() for name in ("one", "two"))
    assert statuses == [0, 0], output
    state = read_checkpoint(tmp_path / "run" / "last.pth")
    assert state["progress"]["epoch"] == 2
    assert len(state["random"]) == 4
    assert output.count("Epoch 2") == 1
    assert output.count("of 4 on cpu") == 1
    assert "0.00025 x 4 processes" in output


def test_a_run_resumes_by_itself_after_a_restart_by_torchrun(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_THAT_KILLS_RANK_1_ONCE)
    torchrun = start("output", [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", script])
    assert torchrun.wait(TIMEOUT_SECONDS) == 0
    output = (tmp_path / "output.txt").read_text()
    assert "Restart 1 by the launcher: resuming" in output
    assert "last.pth: epoch 1, step 2 of" in output
    assert "exitcode: -9) local_rank: 1" in output
    assert "rank 0 has lost the other processes" in output
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["epoch"] == 2


def test_a_run_without_a_launcher_stops_cleanly_on_sigterm(start: Start, tmp_path: Path) -> None:
    launcher = start("output", [sys.executable, SCRIPT, "--nproc", "2"], "--epochs", "9999")
    last = tmp_path / "run" / "last.pth"
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not last.exists() and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(TIMEOUT_SECONDS) == STOPPED_STATUS
    assert (tmp_path / "run" / "run.status").read_text() == "stopped\n"
    output = (tmp_path / "output.txt").read_text()
    assert output.count("Stopped after step") == 1
    assert "Traceback" not in output
    steps = read_checkpoint(last)["progress"]["total_steps"]
    assert f"Stopped after step {steps} " in output


def test_more_processes_than_devices_are_refused_before_they_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    started: list[int] = []
    monkeypatch.setattr(train_distributed, "launch", lambda processes, *_: started.append(processes) or 0)
    parser = argparse.ArgumentParser()
    train_distributed.add_arguments(parser)
    with pytest.raises(ConfigError, match="2 processes need 2 cuda devices"):
        train_distributed.run(parser.parse_args(["--nproc", "2"]))
    assert started == []
    # The device of a resumed run may be that of its checkpoint; the processes compare their devices when they meet.
    for flags in (["--device", "cpu"], ["--resume", "run"], ["--set", "train.device=cpu"]):
        assert train_distributed.run(parser.parse_args(["--nproc", "2", *flags])) == 0
    assert started == [2, 2, 2]


@pytest.mark.parametrize("torchrun_id, expected", [(None, [STOPPED_STATUS, 0]), ("none", [0, 0])])
def test_rank_0_alone_reports_a_stop_and_not_to_torchrun(
    monkeypatch: pytest.MonkeyPatch, torchrun_id: str | None, expected: list[int]
) -> None:
    parser = argparse.ArgumentParser()
    train_distributed.add_arguments(parser)
    monkeypatch.setattr(logging.getLogger("posenet"), "level", logging.INFO)
    monkeypatch.setattr(train_distributed, "train", lambda *_: STOPPED_STATUS)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": torchrun_id}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    statuses = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        statuses.append(train_distributed.run(parser.parse_args([])))
    assert statuses == expected


def test_processes_with_different_settings_end_together_with_one_message(start: Start, tmp_path: Path) -> None:
    environment = [f"MASTER_PORT={find_free_port()}", "MASTER_ADDR=127.0.0.1", "WORLD_SIZE=2"]
    processes = [
        start(
            f"rank{rank}",
            ["env", *environment, f"RANK={rank}", f"LOCAL_RANK={rank}", sys.executable, SCRIPT],
            "--lr",
            str(0.1 + rank),
        )
        for rank in range(2)
    ]
    assert [process.wait(TIMEOUT_SECONDS) for process in processes] == [2, 2]
    outputs = [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)]
    assert "the processes differ in optim.lr: 0.1 on" in outputs[0]
    assert "1.1 on" in outputs[0]
    assert "differ" not in outputs[1]  # one message per host
    assert "Traceback" not in "".join(outputs)
    assert (tmp_path / "run" / "run.status").read_text() == "failed\n"
    assert not list((tmp_path / "run").glob("*.pth"))


def test_an_input_error_is_reported_once_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    train_distributed.add_arguments(parser)
    args = parser.parse_args(["-p", str(tmp_path / "run"), "--device", "toaster"])
    monkeypatch.setattr(logging.getLogger("posenet"), "level", logging.INFO)
    with pytest.raises(SystemExit) as caught:
        train_distributed._train(args, RankInfo(rank=1, world_size=2, local_rank=1))
    assert caught.value.code == 2
    with pytest.raises(ConfigError, match="rank 2: .*toaster"):
        train_distributed._train(args, RankInfo(rank=2, world_size=4, local_rank=0))
    with pytest.raises(ConfigError, match="^device 'toaster'"):
        train_distributed._train(args, RankInfo(rank=0, world_size=2, local_rank=0))
