"""Several processes: collective calls, devices, backends, and the wrapped module."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from posenet.devices.distributed import (
    DistributedRuntime,
    device_of_rank,
    is_lost_contact,
    process_group_backends,
    require_devices,
)
from posenet.devices.rank_info import RankInfo
from posenet.errors import ConfigError, TrainingError
from tests.helpers.process_groups import run_in_processes, single_process_group


def test_collective_calls_return_the_same_on_both_ranks(tmp_path: Path) -> None:
    def call_all(runtime: DistributedRuntime) -> dict[str, Any]:
        rank = runtime.rank
        broadcast = torch.full((2,), float(rank))
        runtime.broadcast_tensors([broadcast])
        values = torch.tensor([1.0, float(rank)])
        return {
            "any_rank": (runtime.any_rank(rank == 1), runtime.any_rank(False)),
            "vote": runtime.vote(False, True, rank == 0),
            "all_reduce_sum": runtime.all_reduce_sum(values).tolist(),
            "values": values.tolist(),
            "gather_objects": runtime.gather_objects({"rank": rank}),
            "broadcast_object": runtime.broadcast_object(f"from rank {rank}"),
            "broadcast_tensors": broadcast.tolist(),
            "identity": (rank, runtime.world_size, runtime.is_main),
        }

    results = run_in_processes(2, tmp_path, call_all)
    for rank, result in enumerate(results):
        assert result == {
            "any_rank": (True, False),
            "vote": (False, True, True),
            "all_reduce_sum": [2.0, 1.0],
            "values": [1.0, rank],  # all_reduce_sum does not change its argument
            "gather_objects": [{"rank": 0}, {"rank": 1}],
            "broadcast_object": "from rank 0",
            "broadcast_tensors": [0.0, 0.0],
            "identity": (rank, 2, rank == 0),
        }


def test_gradients_are_averaged_over_the_ranks_unless_the_exchange_is_suppressed(tmp_path: Path) -> None:
    def gradients(runtime: DistributedRuntime) -> tuple[float, float]:
        linear = nn.Linear(1, 1, bias=False)
        wrapped = runtime.wrap(linear)
        images = torch.full((1, 1), float(runtime.rank))
        with runtime.no_gradient_sync(wrapped):
            wrapped(images).sum().backward()
        local = linear.weight.grad.clone()
        linear.weight.grad = None
        wrapped(images).sum().backward()
        return local.item(), linear.weight.grad.item()

    assert run_in_processes(2, tmp_path, gradients) == [(0.0, 0.5), (1.0, 0.5)]


def test_buffers_are_not_broadcast_in_the_forward_pass(tmp_path: Path) -> None:
    def running_mean(runtime: DistributedRuntime) -> float:
        norm = nn.BatchNorm1d(1, momentum=1.0)
        wrapped = runtime.wrap(norm)
        for _ in range(2):
            wrapped(torch.full((2, 1), float(runtime.rank)))
        return norm.running_mean.item()

    assert run_in_processes(2, tmp_path, running_mean) == [0.0, 1.0]


def test_the_death_of_another_process_is_recognized(tmp_path: Path) -> None:
    def wait_for_dead_rank(runtime: DistributedRuntime) -> None:
        if runtime.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            runtime.any_rank(False)
        except RuntimeError as error:
            (tmp_path / "recognized").write_text(str(is_lost_contact(error)))
            raise

    with pytest.raises(TrainingError, match="rank 1 of 2 was killed by SIGKILL"):
        run_in_processes(2, tmp_path, wait_for_dead_rank)
    assert (tmp_path / "recognized").read_text() == "True"
    assert not is_lost_contact(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_process_that_hangs_is_recognized(tmp_path: Path) -> None:
    def wait_for_hanging_rank(runtime: DistributedRuntime) -> bool | None:
        group = dist.new_group(timeout=timedelta(seconds=1))
        if runtime.rank == 1:
            time.sleep(3)
            return None
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            return is_lost_contact(error)
        return None

    assert run_in_processes(2, tmp_path, wait_for_hanging_rank)[0] is True


def test_a_wrong_call_is_no_lost_contact(tmp_path: Path) -> None:
    def call_wrongly(runtime: DistributedRuntime) -> list[tuple[str, bool]]:
        reports = []
        for call in (
            lambda: dist.all_reduce(torch.ones(1, dtype=torch.int16)),
            lambda: dist.broadcast(torch.ones(1), src=7),
        ):
            try:
                call()
            except RuntimeError as error:
                reports.append((str(error), is_lost_contact(error)))
        return reports

    for reports in run_in_processes(2, tmp_path, call_wrongly):
        assert reports == [
            ("Invalid scalar type", False),
            ("ProcessGroupGloo::broadcast: invalid root rank: 7", False),
        ]


@pytest.mark.parametrize(
    "error, expected",
    [
        (dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), True),
        (dist.DistStoreError("wait timeout after 600000ms"), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 0."), True),
        (dist.DistBackendError("NCCL error, invalid usage\nncclInvalidUsage: This usually reflects"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Read error [10.0.0.2]:1: Connection reset by peer"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:1] writev [10.0.0.2]:1: Broken pipe"), True),
        (RuntimeError("[gloo/transport/tcp/buffer.cc:1] Application timeout caused pair closure"), True),
        (RuntimeError("ProcessGroupGloo does not support reduce_scatter"), False),
        (
            RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4"),
            False,
        ),
    ],
)
def test_errors_of_the_libraries_are_told_apart(error: RuntimeError, expected: bool) -> None:
    assert is_lost_contact(error) == expected


def test_every_rank_has_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    selected: list[int] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", selected.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert device_of_rank(torch.device("xpu"), RankInfo(5, 8, 1)) == torch.device("xpu", 1)
    assert selected == [1]
    assert device_of_rank(torch.device("cpu"), RankInfo(5, 8, 1)) == torch.device("cpu")
    with pytest.raises(ConfigError, match="local rank 2 has no device: this machine has only 2"):
        device_of_rank(torch.device("cuda"), RankInfo(2, 3, 2))
    with pytest.raises(ConfigError, match="--device cuda:1"):
        device_of_rank(torch.device("cuda:1"), RankInfo(0, 2, 0))


def test_a_rank_that_sees_one_device_only_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert device_of_rank(torch.device("cuda"), RankInfo(2, 4, 2)) == torch.device("cuda", 0)


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    for name in ("auto", "xpu"):
        with pytest.raises(ConfigError, match="2 processes need 2 xpu devices, and this machine has 1; use --nproc 1"):
            require_devices(name, 2)
        require_devices(name, 1)
    require_devices("cpu", 2)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    require_devices("auto", 2)


def test_the_backends_depend_on_the_device() -> None:
    assert process_group_backends(torch.device("cpu")) == "gloo"
    assert process_group_backends(torch.device("cuda")) == "cpu:gloo,cuda:nccl"
    assert process_group_backends(torch.device("xpu")) == "cpu:gloo,xpu:xccl"


def test_processes_that_do_not_find_each_other_are_an_error() -> None:
    rank_info = RankInfo(1, 2, 1, init_method="tcp://127.0.0.1:9", run_id="1.0")
    with pytest.raises(TrainingError, match=r"did not find each other \(.+\); .* can reach tcp://127.0.0.1:9"):
        DistributedRuntime(torch.device("cpu"), rank_info, timeout_minutes=0.01)


def test_accelerators_use_the_sync_batch_norm_of_pytorch() -> None:
    runtime = DistributedRuntime.__new__(DistributedRuntime)
    runtime.device = torch.device("cuda")
    assert isinstance(runtime.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(2)))[0], nn.SyncBatchNorm)


def test_a_closed_runtime_has_left_the_process_group() -> None:
    with single_process_group() as runtime:
        assert dist.is_initialized()
    assert not dist.is_initialized()
    runtime.close()  # closing again does nothing
