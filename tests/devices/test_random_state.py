"""Saving and restoring the random number generators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from posenet.devices.random_state import get_random_state, set_random_state

CPU = torch.device("cpu")


def test_random_numbers_repeat_after_the_state_is_restored() -> None:
    state = get_random_state(CPU)
    expected = torch.rand(4)
    torch.rand(3)
    set_random_state(state, CPU)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


def test_the_generator_of_an_accelerator_is_saved_and_restored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device, restored = torch.device("cuda:1"), []
    module = SimpleNamespace(
        get_rng_state=lambda device: f"state of {device}",
        set_rng_state=lambda state, device: restored.append((state, device)),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    state = get_random_state(device)
    assert state["device"] == "state of cuda:1"
    set_random_state(state, device)
    set_random_state(get_random_state(CPU), device)
    assert restored == [("state of cuda:1", device)]
