"""What an accelerator offers: names, memory, pinned memory, and what identifies it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenet.devices.capabilities import (
    describe_device,
    device_identity,
    has_tf32,
    peak_memory,
    supports_channels_last,
    supports_pinned_memory,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda:1")
XPU = torch.device("xpu:0")


def test_a_device_is_described_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert describe_device(CUDA) == "cuda:1 (NVIDIA H100)"
    assert describe_device(CPU) == "cpu"
    assert describe_device(torch.device("mps")) == "mps"


def test_peak_memory_is_asked_only_of_modules_that_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * device.index)
    assert peak_memory(CUDA) == 3
    assert peak_memory(torch.device("mps")) is None
    assert peak_memory(CPU) is None


@pytest.mark.parametrize(
    "name, pinned", [("cuda:0", True), ("npu", True), ("chip", True), ("mps", False), ("cpu", False)]
)
def test_every_accelerator_but_mps_copies_from_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, name: str, pinned: bool
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: SimpleNamespace(is_pinned=lambda: True))
    device: Any = SimpleNamespace(type=name.partition(":")[0])
    assert supports_pinned_memory(device) == pinned


def test_an_accelerator_without_pinned_memory_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("no pin_memory allocator")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    assert not supports_pinned_memory(XPU)


def test_a_device_that_refuses_channels_last_does_not_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supports_channels_last(CPU)

    def refuse(tensor: torch.Tensor, memory_format: torch.memory_format) -> None:
        raise RuntimeError("only the contiguous memory format is supported")

    monkeypatch.setattr(torch.Tensor, "contiguous", refuse)
    assert not supports_channels_last(CPU)


def test_tf32_is_asked_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: True)
    assert has_tf32(CUDA)
    assert not has_tf32(torch.device("mps")) and not has_tf32(CPU)


def with_properties(monkeypatch: pytest.MonkeyPatch, *properties: dict[str, Any]) -> None:
    """Let CUDA devices have the given properties, in the order of their indices."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**properties[index]))


def test_the_uuid_identifies_a_device_whatever_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    with_properties(monkeypatch, {"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    assert device_identity(CUDA, {"CUDA_VISIBLE_DEVICES": "4,5"}) == "GPU-b"
    with_properties(monkeypatch, {"uuid": "GPU-b"})
    assert device_identity(torch.device("cuda:0"), {"CUDA_VISIBLE_DEVICES": "5"}) == "GPU-b"


def test_slices_of_one_gpu_are_different_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with_properties(monkeypatch, {"uuid": "GPU-a"})
    first, second = (
        device_identity(torch.device("cuda:0"), {"CUDA_VISIBLE_DEVICES": name}) for name in ("MIG-1", "MIG-2")
    )
    assert first != second


def test_without_a_uuid_the_pci_address_identifies_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with_properties(monkeypatch, {"pci_domain_id": 0, "pci_bus_id": 3, "pci_device_id": 1})
    assert device_identity(torch.device("cuda:0"), {}) == "0:3:1"


@pytest.mark.parametrize(
    "first, second, same",
    [
        ((0, {}), (0, {}), True),
        ((0, {}), (1, {}), False),
        ((0, {"ASCEND_RT_VISIBLE_DEVICES": "2"}), (0, {"ASCEND_RT_VISIBLE_DEVICES": "3"}), False),
        ((0, {"ASCEND_RT_VISIBLE_DEVICES": "3"}), (1, {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}), True),
        ((0, {"ZE_AFFINITY_MASK": "0"}), (0, {"ZE_AFFINITY_MASK": "0"}), True),
        ((0, {"CUDA_VISIBLE_DEVICES": "0"}), (1, {"CUDA_VISIBLE_DEVICES": "0"}), False),  # set for other devices
    ],
)
def test_without_properties_a_device_is_identified_by_what_its_process_sees(
    first: tuple[int, dict[str, str]], second: tuple[int, dict[str, str]], same: bool
) -> None:
    mps = [torch.device("mps", index) for index, _ in (first, second)]
    identities = [device_identity(device, environment) for device, (_, environment) in zip(mps, (first, second))]
    assert (identities[0] == identities[1]) == same


def test_processes_share_a_cpu() -> None:
    assert device_identity(CPU, {"CUDA_VISIBLE_DEVICES": "0"}) == ""
