"""A tool in several processes: what the parent checks first, how they end, and that they do what one does."""

import argparse
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from posenet.cli.processes import run_on_ranks, run_processes
from posenet.devices.ranks import Ranks
from posenet.devices.signals import STOPPED_STATUS, catch_stop_signals
from posenet.errors import DataError, PosenetError
from tests.helpers.chairs import write_chairs
from tests.helpers.process_groups import fork_ranks, need_processes
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.rooms import needs_drafting
from tests.helpers.spot_networks import write_spot_split

STARTED = 7
"""Exit status of the processes, where a test does not start them."""
PATIENCE_SECONDS = 60


@pytest.fixture
def input_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for name in ("a.pth", "a.h5", "existing.json"):
        Path(name).touch()
    Path("a.json").write_text('{"images": [], "annotations": [], "categories": []}')


@pytest.fixture
def no_processes(input_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    need_processes()
    monkeypatch.setattr("posenet.cli.processes.run_processes", lambda count, task: STARTED)


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    "words, message",
    [
        ("evaluate --checkpoint missing.pth --images images --annotations a.json", "missing.pth is not a file"),
        ("evaluate --checkpoint a.pth --images images --annotations missing.json", "annotations missing.json"),
        ("evaluate --checkpoint a.pth --images images --annotations a.json --output existing.json", "existing.json ex"),
        pytest.param("train-distributed missing.yaml", "missing.yaml does not exist", marks=needs_drafting),
        pytest.param("train-distributed missing.yaml --resume run", "leave out --resume PATH", marks=needs_drafting),
    ],
)
def test_the_parent_refuses_wrong_input_before_it_starts_processes(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool(words.split()[0], [*words.split()[1:], "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@needs_drafting
@pytest.mark.usefixtures("no_processes")
def test_the_parent_prepares_annotations(tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path, "photos", 8, 1)
    words = [str(annotations), "--images", str(images), "-p", "run", "--nproc", "2"]
    assert run_tool("train-distributed", words) == STARTED
    assert Path("run/data/train.h5").exists() and Path("run/data/val.h5").exists()


@pytest.mark.usefixtures("no_processes")
def test_processes_of_a_launcher_start_no_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", "data.train=a.h5", "--nproc", "2"]
    assert run_tool("train-distributed", words) == STARTED
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_tool("train-distributed", words) == 2
    assert "leave out --nproc" in capsys.readouterr().err


def test_without_the_part_that_joins_processes_several_are_refused(
    input_files: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "posenet.devices.parallel", None)
    words = "--checkpoint a.pth --images images --annotations a.json".split()
    for flags, world_size in ((["--nproc", "2"], "1"), ([], "2")):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", world_size)
        assert run_tool("evaluate", [*words, *flags]) == 2
        error = capsys.readouterr().err
        assert "posenet.devices.parallel is not in this installation" in error and error.count("\n") == 1


def test_processes_that_fail_show_what_they_have_printed_and_why_they_end(tmp_path: Path) -> None:
    def run(rank: int) -> None:
        sys.stdout = open(tmp_path / "output", "w") if rank else None  # closed

        def fail(ranks: Ranks) -> None:
            (tmp_path / f"{rank}.joined").touch()
            wait_for_files(tmp_path, "*.joined")
            print("half of the work")
            raise DataError("a.h5 is damaged") if rank else ZeroDivisionError

        sys.exit(run_on_ranks(argparse.Namespace(nproc=1, prog="tool"), fail))

    assert [wait_for_exit(pid) for pid in fork_ranks(2, run, tmp_path)] == [1, 2]
    assert (tmp_path / "output").read_text() == "half of the work\n"
    fault, error = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert __file__ in fault and fault.endswith("\nZeroDivisionError\n")
    assert error == "tool: error: rank 1: a.h5 is damaged\n"


def wait_for_files(folder: Path, pattern: str) -> None:
    """Wait for a file of each of two processes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob(pattern))) < 2:
        assert time.monotonic() < deadline, "".join(path.read_text() for path in folder.glob("*.txt"))
        time.sleep(0.02)


def start_processes(folder: Path, task: Callable[[], int]) -> int:
    """Fork a process that runs ``task`` in two processes; return its id. Its error is written to ``output.txt``."""

    def run() -> None:
        try:
            sys.exit(run_processes(2, task))
        except PosenetError as error:
            print(error)
            sys.exit(2)

    return fork_process(run, folder / "output.txt")


def tell_start_method() -> int:
    """2 if data workers are started in another way than in a process alone, which takes memory for each."""
    return 0 if multiprocessing.get_start_method() == multiprocessing.get_all_start_methods()[0] else 2


def test_processes_start_their_data_workers_as_a_process_alone(tmp_path: Path) -> None:
    assert wait_for_exit(start_processes(tmp_path, tell_start_method)) == 0


def die_or_wait() -> int:
    if os.environ["RANK"] == "1":
        signal.raise_signal(signal.SIGKILL)
    time.sleep(2 * PATIENCE_SECONDS)
    return 0


def test_a_process_that_is_killed_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    started = time.monotonic()
    assert wait_for_exit(start_processes(tmp_path, die_or_wait)) == 2
    output = (tmp_path / "output.txt").read_text()
    assert "rank 1 of 2" in output and "SIGKILL" in output and "train.batch_size" in output
    assert time.monotonic() - started < PATIENCE_SECONDS


def work_until_stopped(folder: Path) -> int:
    file = folder / os.environ["RANK"]

    def work(ranks: Ranks) -> int:
        with catch_stop_signals() as stop_requested:
            file.with_suffix(".ready").write_text(str(os.getpid()))
            while not stop_requested():
                time.sleep(0.05)
        return STOPPED_STATUS

    return run_on_ranks(argparse.Namespace(nproc=2, prog="tool"), work, join=lambda: None)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_parent_ends_every_process(tmp_path: Path, number: int) -> None:
    parent = start_processes(tmp_path, functools.partial(work_until_stopped, tmp_path))
    wait_for_files(tmp_path, "*.ready")
    os.kill(parent, number)
    status = -signal.SIGKILL if number == signal.SIGKILL else STOPPED_STATUS
    assert wait_for_exit(parent) == status, (tmp_path / "output.txt").read_text()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(Path("/proc", file.read_text()).exists() for file in tmp_path.glob("*.ready")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    return write_spot_split(tmp_path / "split")


def evaluate(weights: Path, annotations: Path, output: str, *flags: str) -> int:
    folder = annotations.parent
    words = ["--checkpoint", weights, "--backend", "onnxruntime", "--images", folder, "--annotations", annotations]
    return run_tool("evaluate", list(map(str, [*words, "--output", folder.parent / output, *flags])))


def test_several_processes_write_the_results_file_of_one(spot_file: Path, annotations: Path, tmp_path: Path) -> None:
    assert evaluate(spot_file, annotations, "one.json") == 0
    log = tmp_path / "log"
    pids = fork_ranks(2, lambda rank: sys.exit(evaluate(spot_file, annotations, "two.json")), log)
    statuses = [wait_for_exit(pid) for pid in pids]
    messages = "".join((log / f"{rank}.txt").read_text() for rank in range(2))
    assert statuses == [0, 0] and messages.count("8 images") == 1, messages
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes() != b"[]"


def test_a_wrong_setting_is_reported_by_one_of_several_processes(
    spot_file: Path, annotations: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    pids = fork_ranks(2, lambda rank: sys.exit(evaluate(spot_file, annotations, "a.json", "--set", "foo.bar=1")), log)
    messages = [(log / f"{rank}.txt").read_text() for rank, pid in enumerate(pids) if wait_for_exit(pid) == 2]
    assert len(messages) == 2 and "".join(messages).count("unknown key foo") == 1, messages
