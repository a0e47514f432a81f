"""tools/train_distributed.py as users start it: by torchrun on two machines, restarted, and by itself."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.cli import train_distributed
from posenet.devices.rank_info import RankInfo
from posenet.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "tools" / "train_distributed.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
LIMIT = 150
"""Seconds after which a run counts as hanging; they take some ten."""

FATAL = """
import os, signal, sys
from posenet.cli.main import run_tool
from posenet.training.trainer import TrainStep

train, calls = TrainStep.__call__, []

def fatal(self, batches):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return train(self, batches)

TrainStep.__call__ = fatal
sys.exit(run_tool("train-distributed"))
"""


@pytest.fixture
def start(stores, tmp_path):
    """Starts a command with the flags of a tiny run; gives the process, whose output is in ``NAME.txt``."""
    running = []

    def call(name: str, command: Sequence[str | Path], *flags: str) -> subprocess.Popen:
        settings = [
            "model.stacks=1",
            "model.width=16",
            "model.growth=2",
            "train.input_size=64",
            "train.batch_size=2",
            "train.epochs=2",
            "data.workers=0",
            "log.tensorboard=false",
            "log.curves=false",
            "train.threads=1",
            "checkpoint.every_steps=1",
            f"data.train={stores['train']}",
            f"data.val={stores['val']}",
        ]
        environment = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        with open(tmp_path / f"{name}.txt", "w") as output:
            process = subprocess.Popen(
                [*map(str, command), "-p", str(tmp_path / "run"), *flags, "--device", "cpu", "--set", *settings],
                stdout=output,
                stderr=output,
                env=environment | {"OMP_NUM_THREADS": "1"},
            )
        running.append(process)
        return process

    yield call
    for process in running:
        if process.poll() is None:
            process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_machines_of_two_processes_train_together(start, tmp_path):
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    machines = [
        start(name, [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", *meeting, SCRIPT]) for name in ("one", "two")
    ]
    assert [machine.wait(LIMIT) for machine in machines] == [0, 0]
    state = read_checkpoint(tmp_path / "run" / "last.pth")
    assert state["progress"]["epoch"] == 2 and len(state["random"]) == 4
    said = "".join((tmp_path / f"{name}.txt").read_text() for name in ("one", "two"))
    assert said.count("Epoch 2") == 1 and said.count("of 4 on cpu") == 1 and "0.00025 x 4 processes" in said


def test_after_a_restart_by_torchrun_the_run_goes_on_by_itself(start, tmp_path):
    script = tmp_path / "fatal.py"
    script.write_text(FATAL)
    torchrun = start("out", [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", script])
    assert torchrun.wait(LIMIT) == 0
    said = (tmp_path / "out.txt").read_text()
    assert "Restart 1 by the launcher: resuming" in said and "last.pth: epoch 1, step 2 of" in said
    assert "exitcode: -9) local_rank: 1" in said and "rank 0 has lost the other processes" in said
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["epoch"] == 2


def test_by_itself_it_stops_cleanly_on_sigterm(start, tmp_path):
    launcher = start("out", [sys.executable, SCRIPT, "--nproc", "2"], "--epochs", "9999")
    last = tmp_path / "run" / "last.pth"
    deadline = time.monotonic() + LIMIT
    while not last.exists() and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(LIMIT) == 0
    said = (tmp_path / "out.txt").read_text()
    assert said.count("Stopped after step") == 1 and "Traceback" not in said
    steps = read_checkpoint(last)["progress"]["total_steps"]
    assert f"Stopped after step {steps} " in said


def test_what_is_wrong_with_the_input_is_told_once_per_machine(tmp_path, monkeypatch):
    parser = argparse.ArgumentParser()
    train_distributed.add_arguments(parser)
    args = parser.parse_args(["-p", str(tmp_path / "run"), "--device", "toaster"])
    monkeypatch.setattr(logging.getLogger("posenet"), "level", logging.INFO)
    with pytest.raises(SystemExit) as caught:
        train_distributed._train(args, RankInfo(1, 2, 1))
    assert caught.value.code == 2
    with pytest.raises(ConfigError, match="rank 2: .*toaster"):
        train_distributed._train(args, RankInfo(2, 4, 0))
    with pytest.raises(ConfigError, match="^device 'toaster'"):
        train_distributed._train(args, RankInfo(0, 2, 0))
