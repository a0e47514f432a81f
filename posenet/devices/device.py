"""Selecting a device by name."""

from __future__ import annotations

import importlib

import torch

from posenet.errors import ConfigError


def select_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is an accelerator or the CPU. ``ConfigError`` if this machine lacks it."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        if name.partition(":")[0] == "npu":
            importlib.import_module("torch_npu")  # the import registers the device type
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        # The first sentence of PyTorch's message names the cause; kilobytes of backend names may follow.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device
