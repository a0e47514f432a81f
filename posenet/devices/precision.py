"""Precision of the network: float32, bf16 or fp16, and the loss scaler of fp16."""

import contextlib
from typing import Any, Literal

import torch

from posenet.devices.device import computes_in_bf16
from posenet.errors import ConfigError
from posenet.messages import truncate_for_message
from posenet.settings import TrainConfig

Amp = Literal["off", "bf16", "fp16"]
"""Name of a precision; "off" is float32. AMP stands for automatic mixed precision."""

DTYPES: dict[Amp, torch.dtype] = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def select_amp(device: torch.device, name: Amp | Literal["auto"]) -> Amp:
    """The precision called ``name`` for prediction; ``ConfigError`` if it is unknown.

    "auto" selects bf16, which has the range of float32, if the device computes in it natively. It selects fp16 on older
    CUDA devices with tensor cores, and float32 everywhere else.
    """
    if name != "auto":
        if name not in DTYPES:
            raise ConfigError(f"amp {truncate_for_message(name)} is unknown; use auto, {', '.join(DTYPES)}")
        return name
    if computes_in_bf16(device):
        return "bf16"
    has_tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    return "fp16" if has_tensor_cores else "off"


def select_training_mode(device: torch.device, settings: TrainConfig) -> tuple[Amp, bool]:
    """The precision that ``settings`` name, and whether the memory format is channels-last; "auto" suits the device.

    On a CPU "auto" is float32 in the contiguous format, so that a run does not depend on the instructions of the CPU.
    On accelerators it is the precision of prediction, and in half precision the channels-last format of tensor cores.
    """
    amp: Amp = "off" if settings.amp == "auto" and device.type == "cpu" else select_amp(device, settings.amp)
    channels_last = settings.channels_last
    if channels_last == "auto":
        channels_last = device.type != "cpu" and amp != "off"
    return amp, channels_last


def autocast(device: torch.device, amp: Amp) -> contextlib.AbstractContextManager[Any]:
    """A context in which PyTorch runs each operation in ``amp`` where that is safe; "off" changes nothing."""
    if amp == "off":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[amp])


def make_grad_scaler(device: torch.device, amp: Amp, loss_scale: float) -> torch.amp.GradScaler:
    """The loss scaler of fp16, disabled for other precisions; a ``loss_scale`` of 0 lets it adapt the scale."""
    enabled = amp == "fp16"
    if loss_scale == 0:
        return torch.amp.GradScaler(device.type, enabled=enabled)
    # The scale stays constant: no run is as long as this growth interval, and a backoff factor of 1 changes nothing.
    scaler = torch.amp.GradScaler(device.type, init_scale=loss_scale, growth_interval=2**31 - 1, enabled=enabled)
    scaler.set_backoff_factor(1.0)  # the constructor refuses 1
    return scaler


def describe_training_mode(device: torch.device, settings: TrainConfig) -> str:
    """``Device cuda:0 (NVIDIA H100): precision bf16, channels_last, TF32``."""
    amp, channels_last = select_training_mode(device, settings)
    parts = ["precision " + ("float32" if amp == "off" else amp)]
    if channels_last:
        parts.append("channels_last")
    if settings.tf32 and device.type == "cuda" and torch.cuda.is_tf32_supported():
        parts.append("TF32")
    if torch.are_deterministic_algorithms_enabled():
        parts.append("deterministic algorithms")
    name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    return f"Device {name}: {', '.join(parts)}"
