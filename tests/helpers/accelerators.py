"""The accelerator of this machine, and the checks that a simulated one makes."""

import contextlib
import sys
import warnings
from collections import Counter
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
def count_host_reads(device: torch.device) -> Iterator[Counter[str]]:
    """Count how often operations in this context make the host wait for the device, by their kind.

    The test is skipped on devices that do not tell, which are all but CUDA and the simulated one.
    """
    reads: Counter[str] = Counter()
    simulated = simulation()
    if simulated is not None:
        before = simulated_waits(simulated)
        yield reads
        reads.update(simulated_waits(simulated) - before)
    elif device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield reads
        finally:
            torch.cuda.set_sync_debug_mode("default")
        reads.update(f"{warning.filename}:{warning.lineno}" for warning in caught)
    else:
        pytest.skip(f"{device.type} does not tell when the host waits for it")


def simulated_waits(simulated: ModuleType) -> Counter[str]:
    """How often the host has waited for a simulated accelerator so far, by kind."""
    return Counter({name: count for name, count in simulated.stats().items() if name.startswith("SYNC")})
