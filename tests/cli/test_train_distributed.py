"""tools/train_distributed.py: processes that agree, processes that fail, restarts by torchrun, and stops."""

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.cli.main import run_tool
from posenet.cli.processes import run_processes
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import DataError
from posenet.training.batches import StepBatches
from posenet.training.step import ModelWithLoss, TrainStep
from tests.helpers.chairs import write_chairs
from tests.helpers.process_groups import fork_ranks, free_port
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.rooms import needs_drafting
from tests.helpers.tiny_training import TINY, Stores, data_settings

SCRIPT = Path(__file__).parents[2] / "tools" / "train_distributed.py"
TIMEOUT_SECONDS = 150
"""Time limit of a run; most need about ten seconds."""
SECONDS_TO_FAIL = 90
"""Within this time all processes end after one has failed. It is enough for a busy machine; most need one second."""

Fault = Callable[[], None]


class Ended(NamedTuple):
    """How the processes of a run have ended."""

    statuses: list[int]
    outputs: list[str]
    seconds: float


def run_ranks(
    stores: Stores, folder: Path, world_size: int, flags_of_rank: Callable[[int], Sequence[str]], fault: Fault | None
) -> Ended:
    """Run the tool in processes with the environment of torchrun; ``fault`` is injected into the last rank.

    A process that is still stopped when the others have ended is killed.
    """

    def run_rank(rank: int) -> None:
        if fault is not None and rank == world_size - 1:
            fault()
        flags = ["-p", str(folder / "run"), "--device", "cpu", "--set", *TINY, *data_settings(stores)]
        sys.exit(run_tool("train-distributed", [*flags, *flags_of_rank(rank)]))

    started = time.monotonic()
    pids = fork_ranks(world_size, run_rank, folder)
    statuses = [wait_for_exit(pid) for pid in pids[:-1]]
    seconds = time.monotonic() - started
    if os.waitid(os.P_PID, pids[-1], os.WEXITED | os.WSTOPPED | os.WNOWAIT).si_code == os.CLD_STOPPED:
        os.kill(pids[-1], signal.SIGKILL)
    statuses.append(wait_for_exit(pids[-1]))
    return Ended(statuses, [(folder / f"{rank}.txt").read_text() for rank in range(world_size)], seconds)


def at_third_call(owner: type, name: str, action: Callable[[], Any]) -> Fault:
    """Let the third call of a method call ``action`` first."""

    def install() -> None:
        method = getattr(owner, name)
        calls = itertools.count(1)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == 3:
                action()
            return method(*args, **kwargs)

        setattr(owner, name, replacement)

    return install


def fail(error: Exception) -> None:
    raise error


def send_to_itself(number: signal.Signals) -> Callable[[], Any]:
    return lambda: os.kill(os.getpid(), number)


FAULTS = {
    "forward": (ModelWithLoss, "forward", lambda: fail(RuntimeError("no kernel")), "RuntimeError: no kernel", 1),
    "read": (StepBatches, "take_step", lambda: fail(DataError("a.h5 is bad")), "error: rank {last}: a.h5 is bad", 2),
    "dies": (TrainStep, "__call__", send_to_itself(signal.SIGKILL), "", -signal.SIGKILL),
    "stops": (TrainStep, "__call__", send_to_itself(signal.SIGSTOP), "", -signal.SIGKILL),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_one_rank_is_printed_by_it_and_ends_all(stores: Stores, tmp_path: Path, fault: str) -> None:
    world_size = 3
    owner, name, action, message, status = FAULTS[fault]
    flags = ["train.epochs=4", "--timeout", "0.1"]
    ended = run_ranks(stores, tmp_path, world_size, lambda rank: flags, at_third_call(owner, name, action))
    everything = "\n".join(ended.outputs)
    last_rank = world_size - 1
    assert ended.statuses == [2] * last_rank + [status], everything
    assert ended.seconds < SECONDS_TO_FAIL, everything
    assert message.format(last=last_rank) in ended.outputs[last_rank], everything
    for output in ended.outputs[:-1]:
        assert output.count("error:") <= 1 and "Traceback" not in output, output
    if fault == "read":
        assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["total_steps"] == 2
    else:
        cause = "waited 0.1 minutes" if fault == "stops" else "lost the other processes"
        assert cause in ended.outputs[0]


def test_processes_with_different_settings_end_together_with_one_message(stores: Stores, tmp_path: Path) -> None:
    ended = run_ranks(stores, tmp_path, 2, lambda rank: ["--lr", str(0.1 + rank)], None)
    assert ended.statuses == [2, 2]
    assert "the processes differ in optim.lr: 0.1 on" in ended.outputs[0] and "1.1 on" in ended.outputs[0]
    assert "differ in" not in ended.outputs[1] and "Traceback" not in "".join(ended.outputs)
    assert not list((tmp_path / "run").glob("*.pth"))


@pytest.mark.parametrize("torchrun_id, expected", [(None, [STOPPED_STATUS, 0]), ("none", [0, 0])])
def test_rank_0_alone_reports_a_stop_and_not_to_torchrun(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchrun_id: str | None, expected: list[int]
) -> None:
    """torchrun would restart a process with another status than 0; srun reports the highest one."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if torchrun_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", torchrun_id)
    stop = at_third_call(TrainStep, "__call__", send_to_itself(signal.SIGTERM))
    ended = run_ranks(stores, tmp_path, 2, lambda rank: [], stop)
    assert ended.statuses == expected, ended.outputs
    assert (tmp_path / "run" / "run.status").read_text() == "stopped\n"
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["total_steps"] == 3


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(stores: Stores, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a command with the flags of a tiny run; its output is in ``NAME.txt``."""
    processes = []
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1])}

    def start_command(name: str, command: Sequence[str | Path], *flags: str) -> subprocess.Popen[bytes]:
        common = ["-p", str(tmp_path / "run"), "--device", "cpu", *flags, "--set", *TINY, *data_settings(stores)]
        with open(tmp_path / f"{name}.txt", "w") as output:
            process = subprocess.Popen([*map(str, command), *common], stdout=output, stderr=output, env=environment)
        processes.append(process)
        return process

    yield start_command
    for process in processes:
        if process.poll() is None:
            process.kill()


def train_with_steps_of_a_minute(folder: Path, words: list[str]) -> int:
    def step(*_: object) -> None:
        (folder / f"step of rank {os.environ['RANK']}").touch()
        time.sleep(60)

    TrainStep.__call__ = step
    return run_tool("train-distributed", words)


@pytest.mark.slow
def test_a_second_ctrl_c_interrupts_the_processes_of_nproc(stores: Stores, tmp_path: Path) -> None:
    """The first would wait for the end of a step, which takes a minute here."""
    words = ["-p", str(tmp_path / "run"), "--device", "cpu", "--set", *TINY, *data_settings(stores)]
    task = functools.partial(train_with_steps_of_a_minute, tmp_path, words)
    parent = fork_process(lambda: sys.exit(run_processes(2, task)), tmp_path / "output.txt")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(list(tmp_path.glob("step of rank *"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = time.monotonic()
    for _ in range(2):
        os.kill(parent, signal.SIGINT)
        time.sleep(1)
    assert wait_for_exit(parent) == 130, (tmp_path / "output.txt").read_text()
    assert time.monotonic() - started < 30


@pytest.mark.slow
def test_two_machines_with_two_processes_each_train_one_network(start: Start, tmp_path: Path) -> None:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *rendezvous]
    machines = [start(name, [*torchrun, SCRIPT]) for name in ("one", "two")]
    statuses = [machine.wait(TIMEOUT_SECONDS) for machine in machines]
    output = "".join((tmp_path / f"{name}.txt").read_text() for name in ("one", "two"))
    assert statuses == [0, 0], output
    state = read_checkpoint(tmp_path / "run" / "last.pth")
    assert state["progress"]["epoch"] == 2 and state["world_size"] == 4
    assert output.count("Epoch 2") == 1


SCRIPT_THAT_KILLS_RANK_1_ONCE = """
import os, signal, sys
from posenet.cli.main import run_tool
from posenet.cli.processes import run_processes
from posenet.training.step import TrainStep

train, calls = TrainStep.__call__, []

def train_or_die(self, batches):
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print("rank 1 dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return train(self, batches)

TrainStep.__call__ = train_or_die
sys.exit(run_tool("train-distributed"))
"""


@pytest.mark.slow
def test_a_run_resumes_by_itself_after_a_restart_by_torchrun(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_THAT_KILLS_RANK_1_ONCE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    launcher = start("output", [*torchrun, script], "--set", "checkpoint.every_steps=1")
    assert launcher.wait(TIMEOUT_SECONDS) == 0
    output = (tmp_path / "output.txt").read_text()
    # torchrun names the process that it notices first, which may be the other one, ended by the lost connection.
    assert output.count("rank 1 dies") == 1 and "last.pth: epoch 1, step 2 of" in output, output
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["epoch"] == 2


@needs_drafting
def test_two_processes_train_from_annotations_that_the_first_one_prepares(tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path, "photos", 8, 1)
    flags = f"--images {images} -p {tmp_path / 'run'} --device cpu --epochs 1 --set".split()

    def run_rank(rank: int) -> None:
        pytest.MonkeyPatch().setattr("multiprocessing.parent_process", Mock())  # as if started by --nproc
        sys.exit(run_tool("train-distributed", [str(annotations), *flags, *TINY, "inference.height=64"]))

    statuses = [wait_for_exit(pid) for pid in fork_ranks(2, run_rank, tmp_path / "log")]
    first, second = ((tmp_path / "log" / f"{rank}.txt").read_text() for rank in range(2))
    assert statuses == [0, 0], first + second
    assert first.count("Built train.h5") == first.count("\nAP ") == 1 and "Built" not in second and "AP" not in second
    assert (tmp_path / "run" / "best.pth").exists()


@needs_drafting
def test_a_rank_that_waits_for_data_longer_than_its_time_is_not_told_of_a_lost_one(tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path, "photos", 8, 1)
    words = [annotations, "--images", images, "-p", tmp_path / "run", "--device", "cpu", "--timeout", "0.05"]

    def prepare_slowly(*args: Any, **options: Any) -> None:
        time.sleep(5)

    def run_rank(rank: int) -> None:
        pytest.MonkeyPatch().setattr("posenet.training.from_annotations.prepare", prepare_slowly)
        sys.exit(run_tool("train-distributed", [*map(str, words), "--set", *TINY]))

    started = time.monotonic()
    statuses = [wait_for_exit(pid) for pid in fork_ranks(2, run_rank, tmp_path / "log")]
    waiting = (tmp_path / "log" / "1.txt").read_text()
    assert statuses[1] == 2 and "waited 0.05 minutes" in waiting and "--timeout" in waiting, waiting
    assert "lost" not in waiting and time.monotonic() - started < TIMEOUT_SECONDS / 2
