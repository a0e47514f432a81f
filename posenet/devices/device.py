"""Selecting a device by name."""

from __future__ import annotations

import importlib

import torch

from posenet.errors import ConfigError


def select_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is an accelerator or the CPU. ``ConfigError`` if this machine lacks it.

    A device with an index becomes the current device of this thread.
    """
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
    make_current(device)
    return device


def make_current(device: torch.device) -> None:
    """Make a device with an index the current device of this thread.

    PyTorch pins memory for the current device, and opens a context of some hundred megabytes on it. A loader's pinning
    thread uses the current device of the thread that starts it.
    """
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device)
