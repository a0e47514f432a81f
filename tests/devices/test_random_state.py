"""Saving and restoring the random number generators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from posenet.devices.random_state import get_random_state, set_random_state

CPU = torch.device("cpu")


def replace_generators(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device]]:
    """Let accelerators have generators that accept only states of their type; return the list of those restored."""
    restored: list[tuple[str, torch.device]] = []

    def set_rng_state(state: str, device: torch.device) -> None:
        if device.type not in state:
            raise RuntimeError("RNG state is wrong size")
        restored.append((state, device))

    module = SimpleNamespace(get_rng_state=lambda device: f"state of {device}", set_rng_state=set_rng_state)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return restored


def test_random_numbers_repeat_after_the_state_is_restored() -> None:
    state = get_random_state(CPU)
    expected = torch.rand(4)
    torch.rand(3)
    set_random_state(state, CPU)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


def test_the_generator_of_an_accelerator_is_saved_and_restored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:1")
    restored = replace_generators(monkeypatch)
    state = get_random_state(device)
    assert state["device"] == "state of cuda:1"
    set_random_state(state, device)
    set_random_state(get_random_state(CPU), device)
    assert restored == [("state of cuda:1", device)]


def test_the_state_of_another_type_of_device_is_left_out_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restored = replace_generators(monkeypatch)
    cuda, xpu = torch.device("cuda:0"), torch.device("xpu:0")
    with caplog.at_level("INFO"):
        for saved_on, resumed_on in ((cuda, xpu), (xpu, cuda), (cuda, CPU), (CPU, cuda)):
            caplog.clear()
            state = get_random_state(saved_on)
            expected = torch.rand(4)
            set_random_state(state, resumed_on)
            assert torch.equal(torch.rand(4), expected)
            assert len(caplog.messages) == 1
            assert f"Saved on {saved_on.type}, resumed on {resumed_on.type}" in caplog.text
    assert restored == []


def test_a_state_without_a_type_is_restored_where_the_generator_accepts_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restored = replace_generators(monkeypatch)
    cuda = torch.device("cuda:0")
    old_state = {"cpu": torch.get_rng_state(), "device": "state of cuda:0"}
    set_random_state(old_state, cuda)
    assert restored == [("state of cuda:0", cuda)]
    with caplog.at_level("INFO"):
        set_random_state(old_state, torch.device("xpu:0"))
    assert restored == [("state of cuda:0", cuda)]
    assert "not one of xpu" in caplog.text


def test_a_damaged_state_of_the_same_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_generators(monkeypatch)
    state = {"cpu": torch.get_rng_state(), "device_type": "cuda", "device": "damaged"}
    with pytest.raises(RuntimeError, match="wrong size"):
        set_random_state(state, torch.device("cuda:0"))
