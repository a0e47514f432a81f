"""Settings that are chosen for the device at the start of a run: precision and memory format."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from posenet.devices.capabilities import describe_device, has_tf32
from posenet.devices.cudnn import uses_cudnn
from posenet.devices.precision import DTYPE_NAMES, select_training_mode
from posenet.settings import Config


def choose_device_settings(config: Config, device: torch.device) -> Config:
    """The configuration with values in place of ``train.amp = "auto"`` and ``train.channels_last = "auto"``.

    Checkpoints contain the values, so that a resumed run keeps them on any device.
    """
    mode = select_training_mode(device, config.train)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **mode._asdict()))


def describe_device_settings(config: Config, device: torch.device) -> str:
    """One line for the log of a run about the settings that "auto" and the device determine.

    ``Device cuda:0 (NVIDIA H100): precision bf16 (auto), channels_last on (auto), TF32 on, cudnn.benchmark on``
    """
    mode = select_training_mode(device, config.train)
    parts = [
        f"precision {DTYPE_NAMES[mode.amp]}{_auto(config.train.amp)}",
        f"channels_last {_on_or_off(mode.channels_last)}{_auto(config.train.channels_last)}",
    ]
    if uses_cudnn(device):
        if has_tf32(device):
            parts.append(f"TF32 {_on_or_off(torch.backends.cudnn.allow_tf32)}")
        parts.append(f"cudnn.benchmark {_on_or_off(torch.backends.cudnn.benchmark)}")
    return f"Device {describe_device(device)}: {', '.join(parts)}"


def describe_kept_settings(config: Config, state: dict[str, Any], device: torch.device) -> str:
    """A sentence about a resumed run that keeps other values than "auto" would choose for its new type of device.

    Empty if the checkpoint with the content ``state`` was saved on the same type of device, or does not name it.
    """
    try:
        saved_type = state["random"][0]["device_type"]
    except (LookupError, TypeError):  # an older or a damaged checkpoint, which is reported later
        return ""
    if saved_type == device.type:
        return ""
    kept = select_training_mode(device, config.train)
    auto = select_training_mode(device, dataclasses.replace(config.train, amp="auto", channels_last="auto"))
    if kept == auto:
        return ""
    return (
        f"The run was saved on {saved_type} and keeps its precision and memory format; --amp auto --set "
        f"train.channels_last=auto choose {DTYPE_NAMES[auto.amp]} and channels_last "
        f"{_on_or_off(auto.channels_last)} for {device.type}"
    )


def _auto(setting: str | bool) -> str:
    return " (auto)" if setting == "auto" else ""


def _on_or_off(flag: object) -> str:
    return "on" if flag else "off"
