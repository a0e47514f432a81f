"""Precision of the network: float32, bf16 or fp16, and the loss scaler of fp16."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch

Amp = Literal["off", "bf16", "fp16"]

DTYPES: dict[Amp, torch.dtype] = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def select_amp(device: torch.device, name: Amp | Literal["auto"] = "auto") -> Amp:
    """The precision called ``name``; "auto" is the fastest that is as accurate on this device.

    That is bf16, which reaches as far as float32, where the device computes in it, and fp16 on older CUDA devices with
    tensor cores. A CPU without bf16 instructions only imitates it, slower than float32.
    """
    if name != "auto":
        return name
    if device.type == "cpu":
        asked = (getattr(torch.cpu, ask, None) for ask in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        native = torch.backends.mkldnn.is_available() and any(ask is not None and ask() for ask in asked)
        return "bf16" if native else "off"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "off"
    return "off"


def autocast(device: torch.device, amp: Amp) -> contextlib.AbstractContextManager[Any]:
    """Run the network in bf16 or fp16 where that is safe; "off" does nothing."""
    if amp == "off":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[amp])


def grad_scaler(device: torch.device, amp: Amp, fixed: float = 0.0) -> torch.amp.GradScaler:
    """The loss scaler of fp16 training; for other precisions one that does nothing.

    Args:
        fixed: constant loss scale; 0 adapts it.
    """
    if not fixed:
        return torch.amp.GradScaler(device.type, enabled=amp == "fp16")
    # A growth interval that no run reaches and a backoff of 1, which only the setter takes, hold the scale.
    scaler = torch.amp.GradScaler(device.type, init_scale=fixed, growth_interval=2**31 - 1, enabled=amp == "fp16")
    scaler.set_backoff_factor(1.0)
    return scaler
