"""A tool in several processes: what the parent checks first, their number, and that they do what one does."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from posenet.cli.processes import run_on_ranks
from posenet.devices.ranks import Ranks
from posenet.errors import DataError
from tests.helpers.chairs import write_chairs
from tests.helpers.process_groups import fork_ranks
from tests.helpers.process_runs import wait_for_exit
from tests.helpers.spot_networks import write_spot_split

STARTED = 7
"""Exit status of the processes, which these tests do not start."""


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("posenet.cli.processes.run_processes", lambda count, arguments: STARTED)
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for name in ("a.pth", "a.h5", "existing.json"):
        Path(name).touch()
    Path("a.json").write_text('{"images": [], "annotations": [], "categories": []}')


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    "words, message",
    [
        ("evaluate --checkpoint missing.pth --images images --annotations a.json", "missing.pth is not a file"),
        ("evaluate --checkpoint a.pth --images missing --annotations a.json", "folder missing does not exist"),
        ("evaluate --checkpoint a.pth --images images --annotations missing.json", "annotations missing.json"),
        ("evaluate --checkpoint a.pth --images images --annotations a.json --output existing.json", "existing.json ex"),
        ("train-distributed --config missing.toml", "configuration missing.toml"),
        ("train-distributed --set data.train=missing.h5", "missing.h5 does not exist"),
        ("train-distributed --set data.train=a.h5 --weights missing.pth", "missing.pth is not a file"),
        ("train-distributed missing.yaml", "missing.yaml does not exist"),
        ("train-distributed a.json --resume a.pth", "a run continues in its folder; leave out --resume"),
    ],
)
def test_the_parent_refuses_wrong_input_before_it_starts_processes(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool(words.split()[0], [*words.split()[1:], "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.usefixtures("no_processes")
def test_the_parent_prepares_annotations(tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path, "photos", 8, 1)
    words = [str(annotations), "--images", str(images), "-p", "run", "--nproc", "2"]
    assert run_tool("train-distributed", words) == STARTED
    assert Path("run/data/train.h5").exists() and Path("run/data/val.h5").exists()


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("nproc, warned", [(2, False), (3, True)])
def test_more_processes_than_cores_are_a_warning(
    nproc: int, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("posenet.cli.processes.usable_cores", lambda: 2)
    words = ["--set", "data.train=a.h5", "--nproc", str(nproc)]
    assert run_tool("train-distributed", words) == STARTED
    assert (f"--nproc {nproc}: this machine has only 2 cores for them" in caplog.text) == warned


@pytest.mark.usefixtures("no_processes")
def test_neither_too_many_processes_nor_those_of_a_launcher_are_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cores, nproc, limit in ((2, 65, 64), (80, 81, 80)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        words = ["--set", "data.train=a.h5", "--nproc"]
        assert run_tool("train-distributed", [*words, str(nproc)]) == 2
        assert f"--nproc {nproc}: too many processes for this machine; start {limit} at most" in capsys.readouterr().err
        assert run_tool("train-distributed", [*words, str(limit)]) == STARTED
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run_tool("train-distributed", [*words, "2"]) == 2
    assert "a launcher has started this process; leave out --nproc" in capsys.readouterr().err


def test_processes_that_fail_show_what_they_have_printed_and_why_they_end(tmp_path: Path) -> None:
    def run(rank: int) -> None:
        sys.stdout = open(tmp_path / f"{rank}.out", "w")

        def fail(ranks: Ranks) -> None:
            (tmp_path / f"{rank}.joined").touch()
            end = time.monotonic() + 60
            while not (tmp_path / f"{1 - rank}.joined").exists() and time.monotonic() < end:
                time.sleep(0.01)
            print("half of the work")
            raise DataError("a.h5 is damaged") if rank else ZeroDivisionError

        sys.exit(run_on_ranks(argparse.Namespace(nproc=1, prog="tool"), fail))

    assert [wait_for_exit(pid) for pid in fork_ranks(2, run, tmp_path)] == [1, 2]
    assert [(tmp_path / f"{rank}.out").read_text() for rank in range(2)] == ["half of the work\n"] * 2
    fault, error = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert __file__ in fault and fault.endswith("\nZeroDivisionError\n")
    assert error == "tool: error: rank 1: a.h5 is damaged\n"


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


@pytest.mark.slow
def test_nproc_starts_processes(
    spot_file: Path, annotations: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(spot_file, annotations, "one.json") == 0
    assert evaluate(spot_file, annotations, "two.json", "--nproc", "2") == 0
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    capfd.readouterr()
    assert evaluate(tmp_path / "missing.onnx", annotations, "three.json", "--nproc", "2") == 2
    error = capfd.readouterr().err
    assert error.count("error:") == 1 and "missing.onnx" in error
