"""Flags of cuDNN."""

from __future__ import annotations

import pytest
import torch

from posenet.devices.cudnn import cudnn_flags, uses_cudnn


def flags() -> tuple[bool, bool]:
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32


def test_flags_hold_within_the_context_and_are_restored_after_an_error() -> None:
    before = flags()
    with pytest.raises(KeyError), cudnn_flags(benchmark=True, tf32=False):
        assert flags() == (True, False)
        with cudnn_flags(benchmark=False):
            assert flags() == (False, False)
        assert flags() == (True, False)
        raise KeyError
    assert flags() == before


def test_deterministic_algorithms_are_not_chosen_by_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, cudnn_flags(benchmark=False):
        patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        with cudnn_flags(benchmark=True):
            assert not torch.backends.cudnn.benchmark


def test_only_cuda_devices_use_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert uses_cudnn(torch.device("cuda:1"))
    assert not uses_cudnn(torch.device("xpu")) and not uses_cudnn(torch.device("cpu"))
