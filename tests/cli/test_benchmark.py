"""The command line of the benchmarks: flags, errors, and the file of --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from tests.helpers.benchmark_runs import TINY_NETWORK, run_benchmark


@pytest.mark.parametrize(
    "arguments",
    [["everything"], [], ["targets", "--repeats", "0"], ["targets", "--threads", "none"], ["data", "--workers", "-1"]],
)
def test_the_parser_refuses_wrong_flags(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run_tool("benchmark", arguments)
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "--h5", "missing.h5"], "missing.h5"),
        (["store", "--h5", "missing.h5"], "missing.h5"),
        (["store", "--images", "."], "both"),
        (["store", "--images", ".", "--annotations", "missing.json"], "missing.json"),
        (["decode", "--annotations", "missing.json"], "missing.json"),
        (["predict", "missing.jpg", *TINY_NETWORK], "missing.jpg"),
        (["predict", "--checkpoint", "missing.pth"], "missing.pth"),
        (["targets", "--input-size", "100"], "multiple of 64"),
        (["network", "--input-size", "64", *TINY_NETWORK], "BatchNorm"),
        (["network", "--set", "model.depth=3"], "model.depth"),
        (["train", "--device", "abacus"], "abacus"),
        (["targets", "--json", "missing/out.json"], "missing"),
        (["targets", "--json", "."], "folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_tool("benchmark", [*arguments, "--quick"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: " in error
    assert message in error


def test_an_input_file_is_never_overwritten(tmp_path: Path) -> None:
    annotations = tmp_path / "annotations.json"
    annotations.write_text("{}")
    assert run_tool("benchmark", ["decode", "--annotations", str(annotations), "--json", str(annotations)]) == 2
    assert annotations.read_text() == "{}"


def test_the_numbers_go_to_standard_output_and_the_table_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool("benchmark", ["targets", "--quick", "--input-size", "128", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["benchmark"] == "targets" and "ms" in captured.err


def test_quick_lowers_the_number_of_runs_unless_it_is_low_already(tmp_path: Path) -> None:
    assert run_benchmark(tmp_path, "targets", "--input-size", "128")["repeats"] == 2
    assert run_benchmark(tmp_path, "targets", "--input-size", "128", "--repeats", "1")["repeats"] == 1
