"""posenet config: what is printed and compared."""

from __future__ import annotations

import pytest

from posenet.cli import main as cli


def test_two_experiments_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_tool("config", ["small", "tiny"]) == 0
    differences = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert differences["model.width"] == "128 -> 64"
    assert "model.stacks" not in differences


def test_what_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_tool("config", ["small", "checkpoints/no_run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "checkpoints/no_run does not exist" in line
