"""The state of PyTorch's random number generators, which a checkpoint saves and restores."""

from __future__ import annotations

from typing import Any

import torch


def get_random_state(device: torch.device) -> dict[str, Any]:
    """The state of the CPU's generator ("cpu") and, if ``device`` is an accelerator, of its generator ("device")."""
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the generators; a state that was saved on a CPU leaves the accelerator's generator as it is."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)
