"""Settings that are chosen for the device at the start of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posenet.devices.cudnn import cudnn_flags
from posenet.settings import Config, TrainConfig
from posenet.training.device_settings import (
    choose_device_settings,
    describe_device_settings,
    describe_kept_settings,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CUDA devices tell what an H100 tells."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr("posenet.devices.precision.supports_channels_last", lambda device: True)


def train_config(**settings: Any) -> Config:
    return Config(train=TrainConfig(**settings))


def test_the_first_line_of_a_run_states_precision_format_and_flags(h100: None) -> None:
    with cudnn_flags(benchmark=True, tf32=False):
        assert describe_device_settings(Config(), CUDA) == (
            "Device cuda:0 (NVIDIA H100): precision bf16 (auto), channels_last on (auto), TF32 off, cudnn.benchmark on"
        )
    config = train_config(amp="fp16", channels_last=False)
    assert describe_device_settings(config, CPU) == "Device cpu: precision fp16, channels_last off"
    assert describe_device_settings(Config(), CPU) == "Device cpu: precision float32 (auto), channels_last off (auto)"


def test_values_replace_auto_so_that_checkpoints_contain_them(h100: None) -> None:
    chosen = choose_device_settings(Config(), CUDA)
    assert (chosen.train.amp, chosen.train.channels_last) == ("bf16", True)
    assert choose_device_settings(chosen, CPU) == chosen


@pytest.mark.parametrize("saved_type, told", [("cuda", True), ("cpu", False), (None, False)])
def test_a_run_that_changes_the_type_of_device_is_told_what_it_keeps(saved_type: str | None, told: bool) -> None:
    config = train_config(amp="bf16", channels_last=True)
    state = {"random": [{"device_type": saved_type} if saved_type else {}]}
    note = describe_kept_settings(config, state, CPU)
    assert bool(note) == told
    if told:
        assert "saved on cuda" in note
        assert "choose float32 and channels_last off for cpu" in note


def test_nothing_is_told_if_auto_would_choose_the_same() -> None:
    config = train_config(amp="off", channels_last=False)
    assert describe_kept_settings(config, {"random": [{"device_type": "cuda"}]}, CPU) == ""
    assert describe_kept_settings(config, {}, CPU) == ""
