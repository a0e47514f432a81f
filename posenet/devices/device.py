"""Choosing a device by name."""

from __future__ import annotations

import importlib

import torch

from posenet.errors import ConfigError


def select_device(name: str = "auto") -> torch.device:
    """The device called ``name``; "auto" is the accelerator PyTorch finds, else the CPU.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        if name.partition(":")[0] == "npu":
            importlib.import_module("torch_npu")  # registers the device
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        # PyTorch's first sentence says it all; the rest can be kilobytes of backend names.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device
