"""Flags that several tools share: names with underscores, and what counts as an input."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import TOOLS, make_parser, run_tool
from posenet.cli.options import fraction, input_files, minutes, positive_int, seconds


def test_a_flag_takes_several_values_together_or_one_by_one() -> None:
    parse = make_parser("train", "train").parse_args
    for words in ("a.yaml --set b=1 c=2 --freeze x y", "a.yaml --freeze x y --set b=1 --set c=2"):
        args = parse(words.split())
        assert args.overrides == ["b=1", "c=2"] and vars(args)["train.freeze"] == ["x", "y"]


def test_the_negative_form_of_a_setting_turns_it_off() -> None:
    parse = make_parser("train", "train").parse_args
    values = [vars(parse(words))["parallel.sync_bn"] for words in ([], ["--sync-bn"], ["--no-sync-bn"])]
    assert values == [None, True, False]


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
            assert "--overwrite" in capsys.readouterr().out, (tool, words)


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
