"""What a training step makes the host wait for, copies ahead of time, memory, compiled steps and CUDA graphs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from posenet.training import device_prefetch
from tests.helpers.accelerators import forbid_waiting, simulation
from tests.helpers.device_training import (
    FROZEN_NORM,
    assert_same_training,
    build_small_step,
    small_batch,
    train_prefetched,
    train_small_network,
)
from tests.helpers.source_files import ROOT
from tests.helpers.tiny_training import CPU


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_the_host_never_waits_in_a_step(accelerator: torch.device, amp: str) -> None:
    train_step, _ = build_small_step(accelerator, f"train.amp='{amp}'")
    batch = small_batch(train_step)
    for _ in range(3):  # allocate what is kept
        train_step([batch])
    with forbid_waiting(accelerator):
        result = train_step([batch])
    assert result.read().loss is not None


def test_the_next_batch_is_copied_without_races(accelerator: torch.device) -> None:
    assert train_prefetched(accelerator) == pytest.approx(train_prefetched(CPU), rel=1e-4)


def test_the_simulation_notices_a_copy_that_the_step_does_not_wait_for(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = simulation()
    if simulated is None:
        pytest.skip("only a simulated accelerator reports races; CUDA has a sanitizer")
    monkeypatch.setattr(device_prefetch, "_wait_for_copy", lambda batch, copied, current: batch)
    train_prefetched(accelerator)
    assert simulated.races()
    simulated.clear()


def test_the_sanitizer_of_cuda_finds_no_races(cuda: torch.device) -> None:
    code = f"import torch; from tests.helpers.device_training import *; train_prefetched(torch.device('{cuda}'))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TORCH_CUDA_SANITIZER": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, f"look at the stack traces of both accesses:\n{run.stderr[-4000:]}"
    assert "CSAN" not in run.stderr, run.stderr[-4000:]


def test_memory_does_not_grow(accelerator: torch.device) -> None:
    module = torch.get_device_module(accelerator)
    if not hasattr(module, "memory_allocated"):
        pytest.skip(f"{accelerator.type} does not report its memory")
    train_step, _ = build_small_step(accelerator)
    batch = small_batch(train_step)
    readings = {}
    for step in range(1, 201):
        train_step([batch])
        if step in (10, 200):
            readings[step] = module.memory_allocated(accelerator)
    assert readings[200] == readings[10], "a step keeps tensors: look for references to the results of earlier steps"


def test_a_compiled_network_trains_like_an_eager_one(cuda: torch.device) -> None:
    eager = train_small_network(cuda, FROZEN_NORM)
    compiled = train_small_network(cuda, FROZEN_NORM, "parallel.compile=true")
    assert_same_training(compiled, eager, 1e-3)


def test_forward_and_backward_can_be_replayed_as_a_cuda_graph(cuda: torch.device) -> None:
    train_step, model = build_small_step(cuda, FROZEN_NORM)
    batch = small_batch(train_step)

    def forward_and_backward() -> torch.Tensor:
        loss: torch.Tensor = model(batch.images, batch.joints, batch.person_mask, batch.mask_miss).mean()
        loss.backward()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = forward_and_backward()
            train_step.optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = forward_and_backward()
    graph.replay()
    torch.cuda.synchronize()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
