"""The runtime of one process on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posenet.devices.runtime import Runtime

CPU = torch.device("cpu")


def test_collective_calls_of_a_single_process_return_its_own_values() -> None:
    runtime = Runtime(CPU)
    assert runtime.is_main and (runtime.rank, runtime.world_size) == (0, 1)
    assert runtime.any_rank(True) and not runtime.any_rank(False)
    assert runtime.vote(True, False) == (True, False)
    assert runtime.all_reduce_sum(torch.tensor([1.0, 2.0])).tolist() == [1, 2]
    assert runtime.gather_objects("value") == ["value"]
    assert runtime.broadcast_object("value") == "value"


def test_modules_and_batches_move_to_the_device() -> None:
    runtime = Runtime(torch.device("meta"))
    module = nn.Linear(1, 1)
    assert runtime.wrap(module) is module and module.weight.is_meta
    assert runtime.to_device(torch.zeros(2)).is_meta


def test_synchronize_waits_for_an_accelerator_and_never_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    Runtime(CPU).synchronize()
    Runtime(torch.device("cuda:1")).synchronize()
    assert waited == [torch.device("cuda:1")]
