"""The devices of the device suite: the CPU always, and with ``-m gpu`` the accelerator of this machine."""

import os
from collections.abc import Iterator

import pytest
import torch

from posenet.devices.device import cudnn_flags
from tests.helpers.accelerators import accelerator_of_this_machine, check_simulation
from tests.helpers.tiny_training import CPU

# Deterministic algorithms of CUDA need it, and it must be set before the first use of the device.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

ACCELERATOR = pytest.param("accelerator", marks=pytest.mark.gpu)


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """Compute float32 without TF32, which has only three digits, so that results can be compared with the CPU's."""
    with cudnn_flags(benchmark=False, tf32=False):
        yield


@pytest.fixture(params=["cpu", ACCELERATOR])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, then the accelerator."""
    if request.param == "cpu":
        yield CPU
        return
    found = accelerator_of_this_machine()
    with check_simulation():
        yield found


@pytest.fixture(params=[ACCELERATOR])
def accelerator() -> Iterator[torch.device]:
    """The accelerator, for tests that compare it with the CPU or use what only accelerators have."""
    found = accelerator_of_this_machine()
    with check_simulation():
        yield found


@pytest.fixture
def accelerators(accelerator: torch.device) -> list[torch.device]:
    """Two accelerators of one type; the test is skipped where there is only one."""
    if torch.accelerator.device_count() < 2:
        pytest.skip(f"this machine has only one device of type {accelerator.type}")
    return [torch.device(accelerator.type, index) for index in range(2)]


@pytest.fixture
def cuda(accelerator: torch.device) -> torch.device:
    """The accelerator if it is a CUDA device, for features that other devices do not have."""
    if accelerator.type != "cuda":
        pytest.skip(f"only CUDA has this; the accelerator is {accelerator}")
    return accelerator
