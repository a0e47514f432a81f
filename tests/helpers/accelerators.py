"""The accelerator of this machine, and the checks that a simulated one makes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch


def accelerator_of_this_machine() -> torch.device:
    """The first accelerator; the test is skipped where PyTorch finds none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        pytest.skip(f"PyTorch {torch.__version__} finds no accelerator on this machine")
    return torch.device(device.type, 0)


def simulation() -> ModuleType | None:
    """The module of the simulated accelerator if this process has one."""
    return sys.modules.get("simdev")


@contextlib.contextmanager
def check_simulation() -> Iterator[None]:
    """On a simulated accelerator, fail if operators mixed devices or if nothing ordered two accesses to memory.

    Real accelerators do not report either, so the context does nothing there.
    """
    simulated = simulation()
    if simulated is None:
        yield
        return
    simulated.clear()
    yield
    torch.accelerator.synchronize()
    assert not simulated.mixed(), f"operators with tensors on several devices: {simulated.mixed()}"
    assert not simulated.races(), f"accesses to memory that nothing orders: {simulated.races()[:3]}"


@contextlib.contextmanager
def forbid_waiting(device: torch.device) -> Iterator[None]:
    """Fail if an operation in this context makes the host wait for the device; only CUDA and the simulation tell."""
    simulated = simulation()
    if simulated is not None:
        before = dict(simulated.stats())
        yield
        waits = {name: count - before.get(name, 0) for name, count in simulated.stats().items() if "SYNC" in name}
        assert not any(waits.values()), f"the host has waited for the device: {waits}"
    elif device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    else:
        yield
