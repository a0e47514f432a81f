"""Selecting a device by name, what it offers, and the flags of cuDNN."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenet.devices.device import (
    cudnn_flags,
    describe_device,
    deterministic_algorithms,
    peak_memory,
    select_device,
    supports_pinned_memory,
    total_memory,
    uses_cudnn,
)
from posenet.errors import ConfigError

CPU = torch.device("cpu")
CUDA = torch.device("cuda:1")
MPS = torch.device("mps")


def test_a_device_is_selected_by_name() -> None:
    assert select_device("cpu") == CPU
    assert torch.zeros(1, device=select_device("auto")).item() == 0


@pytest.mark.parametrize("name", ["", "0", "gpu", "cpux", "cuda:99", "xla", "hpu", "privateuseone", "meta", "npu:0"])
def test_an_unusable_device_is_named_in_one_short_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_device(name)
    message = str(caught.value)
    assert message.startswith(f"device {name!r} cannot be used here") and "the device cpu" in message
    assert "\n" not in message and len(message) < 400


def test_the_number_of_a_gpu_is_answered_with_its_name() -> None:
    for name, answer in (("1", "cuda:1"), ("gpu", "cuda")):
        with pytest.raises(ConfigError) as caught:
            select_device(name)
        assert str(caught.value).startswith(f"device {name!r} cannot be used here (PyTorch knows cpu, cuda, ")
        assert str(caught.value).endswith(f"; try the device cpu, or {answer} for a GPU")


def test_a_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: torch.ones(1))
    assert select_device("cuda:1") == CUDA
    select_device("cuda")
    select_device("cpu")
    assert current == [CUDA]


def test_a_module_tells_name_and_memory_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * device.index)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 80))
    assert (describe_device(CUDA), peak_memory(CUDA), total_memory(CUDA)) == ("cuda:1 (NVIDIA H100)", 3, 80)
    for device in (CPU, MPS):
        assert (describe_device(device), peak_memory(device), total_memory(device)) == (device.type, None, None)


def test_every_accelerator_but_mps_copies_from_pinned_memory_if_memory_can_be_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["cuda", "xpu", "npu", "chip", "mps", "cpu"]
    devices: list[Any] = [SimpleNamespace(type=name) for name in names]
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: SimpleNamespace(is_pinned=lambda: True))
    assert [supports_pinned_memory(device) for device in devices] == [True] * 4 + [False] * 2

    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("no pin_memory allocator")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    assert not any(map(supports_pinned_memory, devices))


def current_flags() -> tuple[bool, bool]:
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32


def test_flags_of_cudnn_hold_within_the_context_and_are_restored_after_an_error() -> None:
    before = current_flags()
    with pytest.raises(KeyError), cudnn_flags(benchmark=True, tf32=False):
        assert current_flags() == (True, False)
        with cudnn_flags(benchmark=False):
            assert current_flags() == (False, False)
        assert current_flags() == (True, False)
        raise KeyError
    assert current_flags() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has no fp32_precision")
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_precision_that_the_program_has_set_is_restored(precision: str) -> None:
    """PyTorch refuses to tell ``allow_tf32`` where only convolutions have another precision."""
    conv, rnn = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.backends.cudnn.allow_tf32 = True
        conv.fp32_precision = precision
        for tf32, inside in ((True, "tf32"), (False, "ieee"), (None, precision)):
            with cudnn_flags(benchmark=True, tf32=tf32):
                assert conv.fp32_precision == inside
            assert (conv.fp32_precision, rnn.fp32_precision) == (precision, "tf32")


@pytest.mark.parametrize("warn_only", [None, False, True])
def test_deterministic_algorithms_are_used_within_the_context_alone(
    warn_only: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``warn_only`` is what the program has set before; None means that it has set nothing."""

    def flags() -> tuple[object, ...]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if warn_only is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    try:
        torch.use_deterministic_algorithms(warn_only is not None, warn_only=bool(warn_only))
        before = flags()
        with deterministic_algorithms(False):
            assert flags() == before
        with pytest.raises(KeyError), deterministic_algorithms(True):
            assert flags() == (True, False)
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (":4096:8" if warn_only is None else ":16:8")
            with cudnn_flags(benchmark=True):
                assert not torch.backends.cudnn.benchmark
            raise KeyError
        assert flags() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms_are_not_chosen_by_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        with cudnn_flags(benchmark=True):
            assert not torch.backends.cudnn.benchmark


def test_only_cuda_devices_use_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert [uses_cudnn(device) for device in (CUDA, torch.device("xpu"), CPU)] == [True, False, False]
