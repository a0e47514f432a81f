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
