"""Flags that several tools share: their values, what counts as an input, and the predictor that they define."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import make_parser
from posenet.cli.options import fraction, input_files, make_predictor, minutes, positive_int, seconds
from posenet.inference.networks import TorchNetwork
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import InferenceConfig
from tests.helpers.networks import write_checkpoint


def test_a_flag_takes_several_values_together_or_one_by_one() -> None:
    parse = make_parser("train", "train").parse_args
    for words in ("a.yaml --set b=1 c=2 --freeze x y", "a.yaml --freeze x y --set b=1 --set c=2"):
        args = parse(words.split())
        assert args.overrides == ["b=1", "c=2"] and vars(args)["train.freeze"] == ["x", "y"]


def test_the_negative_form_of_a_setting_turns_it_off() -> None:
    parse = make_parser("train", "train").parse_args
    values = [vars(parse(words))["parallel.sync_bn"] for words in ([], ["--sync-bn"], ["--no-sync-bn"])]
    assert values == [None, True, False]


def test_an_action_is_quiet_whether_the_flag_comes_before_or_after_it() -> None:
    parse = make_parser("annotations", "annotations").parse_args
    lines = ("--quiet lint a.json", "lint --quiet a.json", "lint a.json")
    assert [parse(words.split()).quiet for words in lines] == [True, True, False]


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


REQUIRED = {"predict": ["a.jpg"], "evaluate": ["--images", "a", "--annotations", "b"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "a.pth", "inference.batch_size=3")


def predictor_of(tool: str, checkpoint: Path, *flags: str) -> Predictor:
    words = [*REQUIRED[tool], "--checkpoint", str(checkpoint), "--device", "cpu", *flags]
    return make_predictor(make_parser(tool, tool).parse_args(words))


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_pytorch_runs_a_fused_copy_in_the_requested_precision(amp: str, checkpoint: Path) -> None:
    network = predictor_of("predict", checkpoint, "--amp", amp, "--backend", "torch").network
    assert isinstance(network, TorchNetwork) and isinstance(network.network, FusedNetwork)
    assert network.network.amp == amp


def test_flags_come_before_set_and_set_before_the_checkpoint(checkpoint: Path) -> None:
    def settings(*flags: str) -> InferenceConfig:
        return predictor_of("predict", checkpoint, "--backend", "torch", *flags).settings

    plain = settings()
    assert plain.batch_size == 3 and plain.flip is False
    changed = settings("--set", "inference.batch_size=5", "inference.flip=true")
    assert changed.batch_size == 5 and changed.flip
    both = settings("--no-flip", "--height", "128", "--set", "inference.flip=true")
    assert not both.flip and both.height == 128 and both.batch_size == 3
    file = checkpoint.with_name("mine.toml")
    file.write_text("[inference]\nheight = 192\n[model]\nstacks = 1\nwidth = 16\ngrowth = 2\n")
    mine = settings("--config", str(file), "--set", "inference.flip=true")
    assert mine.flip and mine.height == 192 and mine.batch_size != 3


def test_an_exported_file_has_the_same_flags(spot_file: Path) -> None:
    flags = ["--set", "inference.keypoint_threshold=0.3", "tracking.smooth=true", "--scales", "1", "2"]
    predictor = predictor_of("predict", spot_file, *flags)
    assert predictor.settings.keypoint_threshold == 0.3 and predictor.tracking.smooth
    assert predictor.settings.scales == (1.0, 2.0) and predictor.settings.height == 192
    both = predictor_of("predict", spot_file, "--flip", "--set", "inference.flip=false", "inference.scales=[0.5]")
    assert both.settings.flip and both.settings.scales == (0.5,), "flags come before --set"
