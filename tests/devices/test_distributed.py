"""Several processes: collective calls, the wrapped module, devices, and what happens if a process is missing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from posenet.devices.parallel import DistributedRuntime, device_of_rank
from posenet.errors import ConfigError, OtherRankError, TrainingError
from tests.helpers.process_groups import TIMEOUT_MINUTES, fork_ranks, run_in_processes, single_process_group
from tests.helpers.process_runs import wait_for_exit


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
    local = linear.weight.grad.clone()
    linear.weight.grad = None
    wrapped(images).sum().backward()
    return local.item(), linear.weight.grad.item()


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
    """Select a device on a machine on which local rank 1 has another accelerator than rank 0."""
    kinds = {("auto", 0): "cpu", ("auto", 1): "meta"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posenet.devices.parallel.device_of_rank", lambda *of_rank: torch.device(kinds[of_rank]))
        runtime.select_device("auto")


def error_of(call: Callable[[], object]) -> str:
    """What a call raises."""
    try:
        call()
    except (ConfigError, OtherRankError) as error:
        return type(error).__name__
    return "no error"


@pytest.mark.slow
def test_a_process_that_dies_and_one_that_still_works_are_told_apart(tmp_path: Path) -> None:
    def wait_for_rank_1(case: str) -> None:
        runtime = DistributedRuntime(timeout_minutes=1 / 60)
        if runtime.rank == 1:
            if case == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(4)
            os._exit(0)
        started = time.monotonic()
        # A process that still works, as rank 0 while it prepares data, is not lost.
        with pytest.raises(TrainingError, match="lost the other" if case == "dies" else "--timeout"):
            with runtime.explain_errors():
                runtime.broadcast_object(runtime.gather_objects(None))
        assert time.monotonic() - started < 3

    for case, status in (("dies", -signal.SIGKILL), ("works", 0)):
        pids = fork_ranks(2, lambda rank, case=case: wait_for_rank_1(case), tmp_path / case)
        assert [wait_for_exit(pid) for pid in pids] == [0, status], (tmp_path / case / "0.txt").read_text()


def test_errors_of_the_libraries_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with single_process_group() as runtime:
        pass
    place = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:1]"
    for error, cause in (
        (dist.DistBackendError("NCCL communicator was aborted on rank 0."), "lost the other processes"),
        (RuntimeError(f"{place} Connection closed by peer"), "lost the other processes"),
        (RuntimeError(f"{place} Timed out waiting 1000ms"), f"{TIMEOUT_MINUTES:g} minutes"),
    ):
        assert cause in runtime.explanation_of(error)
    assert not runtime.explanation_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert "train.batch_size" in runtime.explanation_of(torch.OutOfMemoryError("CUDA out of memory"))


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
