"""Selecting a device by name."""

from __future__ import annotations

import pytest
import torch

from posenet.devices.device import select_device
from posenet.errors import ConfigError


def test_a_device_is_selected_by_name() -> None:
    assert select_device("cpu") == torch.device("cpu")


def test_auto_selects_a_device_that_works() -> None:
    assert torch.zeros(1, device=select_device("auto")).item() == 0


@pytest.mark.parametrize("name", ["", "0", "gpu", "cpux", "cuda:99", "xla", "hpu", "privateuseone", "meta"])
def test_an_unusable_device_is_named_in_one_short_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_device(name)
    message = str(caught.value)
    assert message.startswith(f"device {name!r} cannot be used here") and "--device cpu" in message
    assert "\n" not in message and len(message) < 400


def test_a_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: torch.ones(1))
    assert select_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    select_device("cuda")
    select_device("cpu")
    assert current == [torch.device("cuda:1")]


def test_torch_npu_is_imported_only_for_npu_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("posenet.devices.device.importlib.import_module", imported.append)
    select_device("cpu")
    assert imported == []
    with pytest.raises(ConfigError, match="npu:0"):
        select_device("npu:0")
    assert imported == ["torch_npu"]
