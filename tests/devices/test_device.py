"""Selecting a device by name, what it offers, and the flags of cuDNN."""

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch

from posenet.devices.device import cudnn_flags, deterministic_algorithms, select_device, supports_pinned_memory
from posenet.errors import ConfigError

CPU = torch.device("cpu")
CUDA = torch.device("cuda:1")
MPS = torch.device("mps")


def test_a_device_is_selected_by_name() -> None:
    assert select_device("cpu") == CPU
    assert torch.zeros(1, device=select_device("auto")).item() == 0


@pytest.mark.parametrize("name", ["", "cpux", "cuda:99", "meta", "npu:0", "1", "gpu"])
def test_an_unusable_device_is_named_in_one_short_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_device(name)
    message = str(caught.value)
    assert repr(name) in message and "cpu" in message and "cuda:0" in message
    assert "\n" not in message and len(message) < 400
    assert ("pip install torch_npu" in message) == name.startswith("npu")


def test_a_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: torch.ones(1))
    assert select_device("cuda:1") == CUDA
    select_device("cuda")
    select_device("cpu:0")
    assert current == [CUDA]


def test_every_accelerator_but_mps_copies_from_pinned_memory_if_memory_can_be_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [CUDA, torch.device("xpu"), MPS, CPU]
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: SimpleNamespace(is_pinned=lambda: True))
    assert list(map(supports_pinned_memory, devices)) == [True, True, False, False]

    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("no pin_memory allocator")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    assert not any(map(supports_pinned_memory, devices))


def test_flags_of_cudnn_hold_within_the_context_and_are_restored_after_an_error() -> None:
    def flags() -> tuple[bool, bool]:
        return torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32

    before = flags()
    with pytest.raises(KeyError), cudnn_flags(benchmark=True, tf32=False):
        assert flags() == (True, False)
        with cudnn_flags(benchmark=False):
            assert flags() == (False, False)
        raise KeyError
    assert flags() == before


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


@pytest.mark.parametrize("before", [(False, False), (True, True)])
def test_deterministic_algorithms_are_used_within_the_context_alone_and_not_chosen_by_speed(
    before: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``before`` is what the program has set: whether algorithms are deterministic, and whether others only warn."""

    def flags() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        with pytest.raises(KeyError), deterministic_algorithms():
            assert flags() == (True, False)
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            with cudnn_flags(benchmark=True):
                assert not torch.backends.cudnn.benchmark
            raise KeyError
        assert flags() == before
        torch.use_deterministic_algorithms(False)
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        with cudnn_flags(benchmark=True):
            assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
