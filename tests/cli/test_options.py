"""Flags that several tools share: inputs after a flag with several values, and what counts as an input."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import TOOLS, run_tool
from posenet.cli.options import fraction, give_back_inputs, input_files, minutes, positive_int, seconds


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--scales 0.5 1 photo.jpg", "photo.jpg --scales 0.5 1"),
        ("--set a.b=c d.e=f photo.jpg - --flip", "photo.jpg - --set a.b=c d.e=f --flip"),
        ("--set a.b=c --scales 2 x y --set d.e=f z", "x y z --set a.b=c --scales 2 --set d.e=f"),
        ("--json p.json --scales 1 x", "--json p.json x --scales 1"),
        ("--flip a.jpg --scales 0.5 1 b.jpg", "--flip a.jpg b.jpg --scales 0.5 1"),
        (
            "a.jpg --min 0.3 --scales 0.5 1 b.jpg --set a.b=c c.jpg",
            "a.jpg b.jpg c.jpg --min 0.3 --scales 0.5 1 --set a.b=c",
        ),
        ("a --set a.b=c --scales 2 x --flip y", "a x --set a.b=c --scales 2 --flip y"),
        ("--quiet import --set a.b=1 w.pth --output o", "--quiet import w.pth --set a.b=1 --output o"),
        ("import d.yaml --keypoints nose tail --output o.json", "import d.yaml --keypoints nose tail --output o.json"),
        ("import --keypoints nose tail data.yaml --output o", "import data.yaml --keypoints nose tail --output o"),
        ("x --scales 0.5 1 --set a.b=c", "x --scales 0.5 1 --set a.b=c"),
        ("--scales 1 -- --set x", "--scales 1 -- --set x"),
        ("--scales=1 x", "--scales=1 x"),
    ],
)
def test_inputs_after_a_flag_with_several_values_move_before_it(words: str, expected: str) -> None:
    assert give_back_inputs(words.split()) == expected.split()


def test_tools_without_inputs_still_name_the_word_that_is_no_override(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool("train", ["--set", "model.stacks", "2"]) == 2
    error = capsys.readouterr().err
    assert "model.stacks" in error and "unrecognized" not in error


def test_every_file_that_a_flag_names_is_an_input_except_the_outputs() -> None:
    args = argparse.Namespace(
        checkpoint="a.pth",
        results=[Path("b.json"), Path("c.json")],
        inputs=["-", "d.jpg"],
        overrides=["model.skeleton='e.toml'", "data.train = f.h5"],
        config=None,
        height=512,
        output="out.json",
        csv="out.csv",
        command=["predict", "g"],
    )
    names = {str(path) for path in input_files(args)}
    assert names >= {"a.pth", "b.json", "c.json", "0", "d.jpg", "e.toml", "f.h5"}
    assert not names & {"out.json", "out.csv", "g", "512"}


def test_every_tool_that_writes_has_the_same_flag_to_replace_files(capsys: pytest.CaptureFixture[str]) -> None:
    actions = {"annotations": ["fix", "import", "skeleton"], "weights": ["import", "export"]}
    for tool in TOOLS:
        # The app writes what the page asks for, into a new folder.
        if tool.startswith("train") or tool in ("app", "config", "docs"):
            continue
        for words in [[action] for action in actions.get(tool, [])] or [[]]:
            with pytest.raises(SystemExit):
                run_tool(tool, [*words, "--help"])
            shown = " ".join(capsys.readouterr().out.split())
            assert "--overwrite replace existing outputs; an input is never replaced" in shown, (tool, words)


@pytest.mark.parametrize(
    "kind, good, wrong",
    [
        (positive_int, "1", ["0", "1.5", "x"]),
        (fraction, "0.5", ["-0.1", "1.1", "nan"]),
        (seconds, "0", ["-1", "nan"]),
        (minutes, "0.5", ["0", "-1", "nan", "1e300", "soon"]),
    ],
)
def test_numbers_out_of_range_are_refused(kind: Callable[[str], float], good: str, wrong: list[str]) -> None:
    assert kind(good) == float(good)
    for text in wrong:
        with pytest.raises((argparse.ArgumentTypeError, ValueError), match=re.escape(text)):
            kind(text)
