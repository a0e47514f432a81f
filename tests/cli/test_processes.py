"""Starting a tool in several processes: what the parent checks first, and their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.cli.main import run_tool

STARTED = 7
"""Exit status of the processes, which these tests do not start."""


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("posenet.cli.processes.run_processes", lambda count, arguments: STARTED)
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for name in ("a.pth", "a.h5", "existing.json"):
        Path(name).touch()
    Path("a.json").write_text('{"images": [], "annotations": [], "categories": []}')


@pytest.mark.parametrize(
    "words, message",
    [
        ("evaluate --checkpoint missing.pth --images images --annotations a.json", "missing.pth is not a file"),
        ("evaluate --checkpoint a.pth --images missing --annotations a.json", "folder missing does not exist"),
        ("evaluate --checkpoint a.pth --images images --annotations missing.json", "annotations missing.json"),
        ("evaluate --checkpoint a.pth --images images --annotations a.json --output existing.json", "existing.json ex"),
        ("predict images --json existing.json", "no images in folder images"),
        ("predict a.pth --json existing.json", "a.pth is a file of weights"),
        ("train-distributed --config missing.toml", "configuration missing.toml"),
        ("train-distributed --set data.train=missing.h5", "missing.h5 does not exist"),
        ("train-distributed --set data.train=a.h5 --weights missing.pth", "missing.pth is not a file"),
        ("train-distributed --set data.train=a.h5 checkpoint.path=.", ". already contains a run"),
        ("train-distributed --resume missing.pth", "missing.pth is not a file"),
    ],
)
def test_the_parent_refuses_wrong_input_before_it_starts_processes(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool(words.split()[0], [*words.split()[1:], "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("nproc, warned", [(2, False), (3, True)])
def test_more_processes_than_cores_are_a_warning(
    nproc: int, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("posenet.cli.processes.usable_cores", lambda: 2)
    words = ["--set", "data.train=a.h5", "--nproc", str(nproc)]
    assert run_tool("train-distributed", words) == STARTED
    assert (f"--nproc {nproc}: this machine has only 2 cores for them" in caplog.text) == warned
