"""DataParallel over several devices of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from posenet.devices.data_parallel import DataParallelRuntime, select_devices
from posenet.errors import ConfigError

TWO_DEVICES = [torch.device("cuda:0"), torch.device("cuda:1")]


def test_with_a_single_device_it_is_a_plain_runtime_and_logs_so(caplog: pytest.LogCaptureFixture) -> None:
    runtime = DataParallelRuntime(select_devices(torch.device("cpu"), [0, 1]))
    module = nn.BatchNorm2d(2)
    with caplog.at_level("INFO"):
        assert runtime.wrap(module) is module
    assert "cpu is the only device" in caplog.text
    assert runtime.convert_sync_batch_norm(module) is module
    assert DataParallelRuntime([torch.device("meta")]).to_device(torch.zeros(1)).is_meta


def test_all_devices_or_those_listed_are_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_scatter", object(), raising=False)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr("posenet.devices.data_parallel.select_device", torch.device)
    assert select_devices(torch.device("cuda")) == TWO_DEVICES
    assert select_devices(torch.device("cuda"), [1]) == TWO_DEVICES[1:]
    assert current == TWO_DEVICES
    with pytest.raises(ConfigError, match="twice"):
        select_devices(torch.device("cuda"), [1, 1])


def test_devices_that_data_parallel_cannot_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_scatter", raising=False)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr("posenet.devices.data_parallel.select_device", torch.device)
    with pytest.raises(ConfigError, match=r"2 devices of type xpu.*use tools/train_distributed\.py --nproc 2"):
        select_devices(torch.device("xpu"))
    assert select_devices(torch.device("xpu"), [1]) == [torch.device("xpu:1")]


def test_modules_are_wrapped_in_data_parallel_and_batches_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[tuple[nn.Module, list[torch.device]]] = []
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module)
    monkeypatch.setattr(nn, "DataParallel", lambda module, device_ids: wrapped.append((module, device_ids)))
    runtime = DataParallelRuntime(TWO_DEVICES)
    module, batch = nn.Linear(1, 1), object()
    runtime.wrap(module)
    assert wrapped == [(module, TWO_DEVICES)]
    assert runtime.to_device(batch) is batch
    with pytest.raises(ConfigError, match="train_distributed"):
        runtime.convert_sync_batch_norm(module)


def test_synchronize_waits_for_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    DataParallelRuntime(TWO_DEVICES).synchronize()
    assert waited == TWO_DEVICES
