"""The predictor that predict and evaluate build from their options."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import FORMAT
from posenet.cli.predictor_options import make_predictor
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import config_to_dict, load_config
from tests.helpers.networks import random_network

REQUIRED = {"predict": ["a.jpg"], "evaluate": ["--images", "a", "--annotations", "b"]}


@pytest.mark.parametrize(
    "tool, options, expected",
    [
        ("predict", [], "bf16"),
        ("predict", ["--amp", "off"], "off"),
        ("evaluate", [], "off"),
        ("evaluate", ["--amp", "auto"], "bf16"),
    ],
)
def test_the_tools_use_a_fused_copy_in_the_requested_precision(
    tool: str, options: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU with bf16 instructions; evaluate uses float32 by default, so that AP is the same everywhere."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    config = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])
    state = {"format": FORMAT, "model": random_network(1).state_dict(), "config": config_to_dict(config)}
    torch.save(state, tmp_path / "a.pth")
    parser = argparse.ArgumentParser()
    import_module(f"posenet.cli.{tool}").add_arguments(parser)
    checkpoint = ["--checkpoint", str(tmp_path / "a.pth"), "--device", "cpu"]
    predictor, _ = make_predictor(parser.parse_args([*REQUIRED[tool], *checkpoint, *options]), parallel=False)
    model = predictor.backend.network
    assert isinstance(model, FusedNetwork) and model.amp == expected


@pytest.mark.parametrize("parallel", [False, True])
def test_the_tool_decides_whether_batches_run_at_the_same_time(parallel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(Predictor, "load", lambda path, **options: given.update(options))
    parser = argparse.ArgumentParser()
    import_module("posenet.cli.predict").add_arguments(parser)
    make_predictor(parser.parse_args(["a.jpg", "--checkpoint", "a.onnx"]), parallel=parallel)
    assert given["parallel"] == parallel
