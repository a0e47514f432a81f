"""How often the host waits for the device in a training step, in the loop around it, and for a checkpoint."""

import itertools
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.folder import copy_to_host
from tests.helpers.accelerators import count_host_reads, simulated_waits, simulation
from tests.helpers.device_training import FROZEN_NORM, build_small_step, device_runtime, pin_batch, small_batch
from tests.helpers.tiny_training import AfterStep, train_tiny

READS = {"off": 1, "bf16": 1, "fp16": 2}
"""The losses and the gradient norm together, and in fp16 whether the optimizer's gradients are finite."""


@pytest.mark.parametrize("amp", READS)
@pytest.mark.parametrize("clip", [0, 5])
def test_reads_of_a_step_do_not_depend_on_the_size_of_the_network(
    accelerator: torch.device, amp: str, clip: int
) -> None:
    counts = {}
    for stacks, num_batches in itertools.product((1, 3), (1, 2)):
        precision = [f"train.amp='{amp}'", "train.loss_scale=16"]
        settings = [FROZEN_NORM, f"optim.max_grad_norm={clip}", f"model.stacks={stacks}"]
        train_step, _ = build_small_step(device_runtime(accelerator), *precision, *settings)
        batches = [pin_batch(small_batch(seed)) for seed in range(num_batches)]
        train_step(batches)  # the first step allocates the momentum
        with count_host_reads(accelerator) as reads:
            result = train_step(batches)
        assert result.loss is not None
        counts[stacks, num_batches] = reads.total()
        assert 1 <= reads.total() <= READS[amp], reads
    assert len(set(counts.values())) == 1, counts


def test_a_skipped_step_waits_as_often_as_another(accelerator: torch.device) -> None:
    train_step, model = build_small_step(device_runtime(accelerator))
    batch = pin_batch(small_batch())
    train_step([batch])
    model.register_forward_hook(lambda module, _, terms: terms * float("nan"))
    with count_host_reads(accelerator) as reads:
        assert train_step([batch]).loss is None
    assert reads.total() == 1, reads


@pytest.mark.parametrize("amp", READS)
def test_the_loop_around_a_step_waits_only_to_log(
    stores: dict[str, Path], tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    """With a log line after every third step, there are three steps and one line between two calls of the log."""
    simulated = simulation()
    if simulated is None:
        pytest.skip("only the simulated accelerator counts over a whole run")
    reads: dict[int, list[int]] = {}
    for every in (1, 3):
        counts: list[int] = []
        reads[every] = counts

        def count(counts: list[int] = counts) -> None:
            counts.append(simulated_waits(simulated).total())

        precision = [f"train.amp={amp}", "train.loss_scale=16", "train.channels_last=false", FROZEN_NORM]
        settings = [f"log.every_steps={every}", f"train.device={accelerator}", "average.kind=ema"]
        train_tiny(stores, tmp_path / f"{every}", *precision, *settings, callbacks=[AfterStep(0, count)], max_steps=6)
    one, three = (reads[every][-1] - reads[every][-2] for every in (1, 3))
    per_step = (three - one) / 2
    assert per_step <= READS[amp], f"{per_step} per step, {one - per_step} per log line"
    assert one - per_step <= 1, f"{per_step} per step, {one - per_step} per log line"


def test_a_checkpoint_waits_once_for_each_of_its_tensors(accelerator: torch.device) -> None:
    train_step, model = build_small_step(device_runtime(accelerator))
    train_step([small_batch()])
    state = {"model": model.network.state_dict(), "optimizer": train_step.optimizer.state_dict()}
    of_optimizer = [tensor for values in state["optimizer"]["state"].values() for tensor in values.values()]
    tensors = len(state["model"]) + len(of_optimizer)
    with count_host_reads(accelerator) as reads:
        copied = copy_to_host(state)
    assert reads.total() <= tensors
    assert all(tensor.device.type == "cpu" for tensor in copied["model"].values())
