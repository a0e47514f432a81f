"""The state of PyTorch's random number generators, which a checkpoint saves and restores."""

from __future__ import annotations

import logging
from typing import Any

import torch

_log = logging.getLogger(__name__)


def get_random_state(device: torch.device) -> dict[str, Any]:
    """The state of the CPU's generator ("cpu") and, if ``device`` is an accelerator, of its generator ("device").

    "device_type" says which kind of accelerator it is.
    """
    state = {"cpu": torch.get_rng_state(), "device_type": device.type}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the generators. That of an accelerator is left as it is if the state is that of another type of device.

    Checkpoints of version 0.3 and older do not name the type: their state is restored if the generator accepts it.
    """
    torch.set_rng_state(state["cpu"])
    device_type = state.get("device_type")
    if device_type not in (None, device.type):
        _log.info("Saved on %s, resumed on %s: only the random state of the CPU is restored", device_type, device.type)
        return
    if device.type == "cpu" or "device" not in state:
        return
    try:
        torch.get_device_module(device).set_rng_state(state["device"], device)
    except RuntimeError:
        if device_type is not None:
            raise
        _log.info("The random state in the checkpoint is not one of %s and is not restored", device.type)
