"""Runtimes: one device, DataParallel, and several processes; and how errors of PyTorch are explained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from posenet.devices.parallel import DataParallelRuntime, DistributedRuntime, device_of_rank
from posenet.errors import ConfigError, OtherRankError, TrainingError
from tests.helpers.process_groups import TIMEOUT_MINUTES, run_in_processes, single_process_group

TWO_DEVICES = [torch.device("cuda:0"), torch.device("cuda:1")]


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
    module.compiled = True
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


def test_accelerators_use_the_sync_batch_norm_of_pytorch() -> None:
    with single_process_group() as runtime:
        runtime.device = torch.device("cuda")
        assert isinstance(runtime.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(2)))[0], nn.SyncBatchNorm)


def test_a_rank_alone_does_not_copy_what_it_broadcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with single_process_group() as runtime:
        state = {"weight": torch.zeros(3)}
        assert runtime.broadcast_object(state) is state


def test_collective_calls_and_gradients_of_two_ranks(tmp_path: Path) -> None:
    def call_all(runtime: DistributedRuntime) -> dict[str, Any]:
        rank = runtime.rank
        broadcast = torch.full((2,), float(rank))
        runtime.broadcast_tensors([broadcast])
        values = torch.tensor([1.0, float(rank)])
        return {
            "sum_over_ranks": runtime.sum_over_ranks(False, True, rank == 0),
            "all_reduce_sum": runtime.all_reduce_sum(values).tolist(),
            "values": values.tolist(),
            "gather_objects": runtime.gather_objects({"rank": rank}),
            "broadcast_object": runtime.broadcast_object(f"from rank {rank}"),
            "broadcast_tensors": broadcast.tolist(),
            "identity": (rank, runtime.world_size, runtime.is_main),
            "gradients": gradients(runtime),
            "running_mean": running_mean(runtime),
            "error": error_of(lambda: runtime.run_on_all(lambda: fail_on_rank_1(rank))),
            "devices": error_of(lambda: select_other_device(runtime)),
        }

    for rank, result in enumerate(run_in_processes(2, tmp_path, call_all)):
        assert result == {
            "sum_over_ranks": [0, 2, 1],
            "all_reduce_sum": [2.0, 1.0],
            "values": [1.0, rank],  # all_reduce_sum does not change its argument
            "gather_objects": [{"rank": 0}, {"rank": 1}],
            "broadcast_object": "from rank 0",
            "broadcast_tensors": [0.0, 0.0],
            "identity": (rank, 2, rank == 0),
            "gradients": (float(rank), 0.5),
            "running_mean": 0.75 * rank,
            "error": "ConfigError" if rank == 1 else "OtherRankError",
            "devices": "OtherRankError" if rank == 1 else "ConfigError",
        }


def gradients(runtime: DistributedRuntime) -> tuple[float, float]:
    """The gradient of an input that is the rank, without and with the exchange between the ranks."""
    linear = nn.Linear(1, 1, bias=False)
    wrapped = runtime.wrap(linear)
    images = torch.full((1, 1), float(runtime.rank))
    with runtime.no_gradient_sync(wrapped):
        wrapped(images).sum().backward()
    local = linear.weight.grad.item()
    linear.weight.grad = None
    wrapped(images).sum().backward()
    return local, linear.weight.grad.item()


def running_mean(runtime: DistributedRuntime) -> float:
    """The buffer of a rank after two forward passes, which do not exchange it."""
    norm = nn.BatchNorm1d(1, momentum=0.5)
    wrapped = runtime.wrap(norm)
    for _ in range(2):
        wrapped(torch.full((2, 1), float(runtime.rank)))
    return norm.running_mean.item()


def fail_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ConfigError("bad")


def select_other_device(runtime: DistributedRuntime) -> None:
    """Select a device where rank 1 has another kind of accelerator than rank 0."""
    device = torch.device("meta" if runtime.rank else "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posenet.devices.parallel.device_of_rank", lambda *of_rank: device)
        runtime.select_device("auto")


def error_of(call: Callable[[], object]) -> str:
    """The class of the error that a call raises."""
    with pytest.raises((ConfigError, OtherRankError)) as caught:
        call()
    return caught.type.__name__


def test_errors_of_pytorch_that_a_user_can_fix_are_explained() -> None:
    with single_process_group() as runtime:
        pass
    place = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:1]"
    for error, cause in (
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "cpu .*train.batch_size"),
        (dist.DistBackendError("NCCL communicator was aborted on rank 0."), "lost the other processes"),
        (RuntimeError(f"{place} Connection closed by peer"), "lost the other processes"),
        (RuntimeError(f"{place} Timed out waiting 1000ms"), f"{TIMEOUT_MINUTES:g} minutes"),
    ):
        with pytest.raises(TrainingError, match=cause), runtime.explain_errors():
            raise error
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as caught, runtime.explain_errors():
        raise other
    assert caught.value is other


def test_every_rank_has_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    selected: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", selected.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: torch.ones(size))
    assert device_of_rank("xpu", 1) == torch.device("xpu", 1)
    assert selected == [torch.device("xpu", 1)]
    assert device_of_rank("cpu", 1) == torch.device("cpu")
    with pytest.raises(ConfigError, match="local rank 2"):
        device_of_rank("cuda", 2)
    with pytest.raises(ConfigError, match="--device cuda:1"):
        device_of_rank("cuda:1", 0)
    # A scheduler may show each process one device only.
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert device_of_rank("cuda", 2) == torch.device("cuda", 0)
    # "auto" keeps the index that the machine's accelerator may have, and "cpu" looks for no accelerator.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu:0"))
    assert device_of_rank("auto", 0) == torch.device("xpu", 0)
    assert device_of_rank("cpu", 0) == torch.device("cpu")
