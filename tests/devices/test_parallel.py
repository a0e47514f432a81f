"""The runtimes of one process: one device, and DataParallel; and how errors of PyTorch are explained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posenet.devices.parallel import DataParallelRuntime, Runtime
from posenet.errors import ConfigError, TrainingError
from tests.helpers.process_groups import single_process_group

TWO_DEVICES = [torch.device("cuda:0"), torch.device("cuda:1")]


def test_too_little_memory_is_explained_and_other_errors_stay_as_they_are() -> None:
    with pytest.raises(TrainingError, match="cpu .*train.batch_size"):
        with Runtime().explain_errors():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    error = RuntimeError("shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as caught, Runtime().explain_errors():
        raise error
    assert caught.value is error


def test_data_parallel_with_a_single_device_is_a_plain_runtime() -> None:
    runtime = DataParallelRuntime()
    runtime.select_device("cpu")
    module = nn.BatchNorm2d(2)
    assert runtime.wrap(module) is module
    assert runtime.convert_sync_batch_norm(module) is module
    for indices in ([0, 0, 7], [0, 7]):  # of devices that are not there
        with pytest.raises(ConfigError, match=",".join(map(str, indices))):
            DataParallelRuntime(indices).select_device("cpu")
    runtime.devices = [torch.device("meta")]
    runtime.device = runtime.devices[0]
    assert runtime.to_device(torch.zeros(1)).is_meta


def test_data_parallel_wraps_modules_and_leaves_batches_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[tuple[nn.Module, list[torch.device]]] = []
    monkeypatch.setattr(nn, "DataParallel", lambda module, device_ids: wrapped.append((module, device_ids)))
    runtime = DataParallelRuntime()
    runtime.devices = TWO_DEVICES
    module, batch = nn.Linear(1, 1), object()
    runtime.wrap(module)
    assert wrapped == [(module, TWO_DEVICES)]
    assert runtime.to_device(batch) is batch
    with pytest.raises(ConfigError, match="train-distributed --sync-bn"):
        runtime.convert_sync_batch_norm(module)
    module.is_compiled = True
    with pytest.raises(ConfigError, match="train-distributed"):
        runtime.wrap(module)


def test_data_parallel_refuses_devices_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch scatters to CUDA devices only, and its build for CPUs to none."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: torch.ones(size))
    with pytest.raises(ConfigError, match="xpu.*train-distributed --nproc 2"):
        DataParallelRuntime().select_device("xpu")
    with pytest.raises(ConfigError, match="1,1"):
        DataParallelRuntime([1, 1]).select_device("xpu")
    # Devices that can be used are in the order of their numbers, and the first is the current one.
    monkeypatch.setattr("posenet.devices.parallel.scatter", lambda tensor, devices: None)
    for indices, order in ((None, [0, 1]), ([1, 0], [1, 0])):
        runtime = DataParallelRuntime(indices)
        runtime.select_device("xpu")
        assert runtime.devices == [torch.device("xpu", index) for index in order]
        assert runtime.device == runtime.devices[0] == current[-1]


def test_accelerators_use_the_sync_batch_norm_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with single_process_group() as runtime:
        runtime.device = torch.device("cuda")
        assert isinstance(runtime.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(2)))[0], nn.SyncBatchNorm)


def test_a_rank_alone_does_not_copy_what_it_broadcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with single_process_group() as runtime:
        state = {"weight": torch.zeros(3)}
        assert runtime.broadcast_object(state) is state
