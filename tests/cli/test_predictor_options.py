"""The predictor that predict and evaluate build from their flags."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from posenet.cli.options import with_dashes
from posenet.cli.predictor_options import make_predictor
from posenet.inference.networks import TorchNetwork
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import InferenceConfig
from tests.helpers.networks import write_checkpoint

REQUIRED = {"predict": ["a.jpg"], "evaluate": ["--images", "a", "--annotations", "b"]}


def make_parser(tool: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    import_module(f"posenet.cli.{tool}").add_arguments(parser)
    return parser


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "a.pth", "inference.batch_size=3")


def predictor_of(tool: str, checkpoint: Path, *flags: str) -> Predictor:
    words = [*REQUIRED[tool], "--checkpoint", str(checkpoint), "--device", "cpu", *flags]
    return make_predictor(make_parser(tool).parse_args(with_dashes(words)))


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
    flags = ["--set", "inference.keypoint_threshold=0.3", "--scales", "1", "2"]
    predictor = predictor_of("predict", spot_file, *flags)
    assert predictor.settings.keypoint_threshold == 0.3
    assert predictor.settings.scales == (1.0, 2.0) and predictor.settings.height == 192
    both = predictor_of("predict", spot_file, "--flip", "--set", "inference.flip=false", "inference.scales=[0.5]")
    assert both.settings.flip and both.settings.scales == (0.5,), "flags come before --set"
