"""Flags that several tools share: inputs after a flag with several values, and what counts as an input."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import TOOLS, make_parser, run_tool
from posenet.cli.options import fraction, input_files, minutes, normalize_words, positive_int, seconds


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--scales 0.5 1 photo.jpg", "--scales 0.5 --scales 1 photo.jpg"),
        ("x --set a.b=c d_e.f_g=h y --flip", "x --set a.b=c --set d_e.f_g=h y --flip"),
        ("--set a.b=c --scales 2 x", "--set a.b=c --scales 2 x"),
        ("import --keypoints nose tail data.yaml", "import --keypoints nose --keypoints tail data.yaml"),
        ("--freeze --set a.b=c", "--freeze --set a.b=c"),
        ("--freeze stem.* heads.* -p x", "--freeze stem.* --freeze heads.* -p x"),
        ("--max_steps=a_b --check_this a_b", "--max-steps=a_b --check-this a_b"),
        ("--scales 1 -- --set_x a", "--scales 1 -- --set_x a"),
        ("--scales=1 x", "--scales=1 x"),
        ("--set model.stacks 2", "--set model.stacks 2"),
    ],
)
def test_names_get_dashes_and_flags_of_several_values_are_repeated(words: str, expected: str) -> None:
    assert normalize_words(words.split()) == expected.split()


@pytest.mark.parametrize("words", ["a.jpg b.jpg --scales 0.5 1", "--scales 0.5 1 a.jpg b.jpg", "--scales 0.5 1 a.jpg"])
def test_inputs_come_first_or_last(words: str) -> None:
    args = make_parser("predict", "predict").parse_args(normalize_words(words.split()))
    assert args.scales == [0.5, 1]
    assert args.inputs == [word for word in words.split() if word.endswith(".jpg")]


def test_a_word_that_is_no_override_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_tool("train", ["--set", "model.stacks", "2"])
    assert "'model.stacks'" in capsys.readouterr().err


def test_the_paths_that_flags_name_as_inputs_are_never_replaced() -> None:
    args = argparse.Namespace(
        checkpoint="a.pth",
        results=[Path("b.json"), Path("c.json")],
        inputs=["-", "d.jpg"],
        overrides=["model.skeleton='e.toml'", "data.train = f.h5"],
        config=None,
        height=512,
        device="cpu",
        output="out.json",
        csv="out.csv",
    )
    names = {str(path) for path in input_files(args)}
    assert names == {"a.pth", "b.json", "c.json", "0", "d.jpg", "e.toml", "f.h5"}


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
