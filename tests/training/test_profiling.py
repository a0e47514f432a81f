"""Profiles of steps."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from posenet.training.profiling import PROFILE_FILE, WARMUP_STEPS
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import Stores, train_tiny, weights


def test_some_steps_are_profiled_after_a_few_others_and_the_weights_are_the_same(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "posenet")
    train_tiny(stores, tmp_path / "plain", "train.epochs=1")
    assert not (tmp_path / "plain" / PROFILE_FILE).exists()
    train_tiny(stores, tmp_path / "run", "train.epochs=1", profile=2)
    names = {event["name"] for event in json.loads((tmp_path / "run" / PROFILE_FILE).read_text())["traceEvents"]}
    assert {"aten::convolution", "aten::convolution_backward"} <= names
    steps = {name for name in names if name.startswith("ProfilerStep#")}
    assert steps == {f"ProfilerStep#{number}" for number in range(WARMUP_STEPS, WARMUP_STEPS + 2)}
    assert find_differences(weights(tmp_path / "plain"), weights(tmp_path / "run")) == []
    train_tiny(stores, tmp_path / "run", resume=True, max_steps=8, profile=1)  # its own profile is in nobody's way
    (tmp_path / "blocked" / PROFILE_FILE).mkdir(parents=True)
    assert train_tiny(stores, tmp_path / "blocked", max_steps=WARMUP_STEPS + 1, profile=1).steps == WARMUP_STEPS + 1
    assert f"{tmp_path / 'blocked' / PROFILE_FILE} was not written: " in caplog.text
    assert "Profile of 1 step\n" in caplog.text
    assert "Profile of 2 steps; open" in caplog.text and "Self CPU %" in caplog.text
