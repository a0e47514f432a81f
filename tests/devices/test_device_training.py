"""Training on every device and on several: precisions, settings, bad batches and resuming; the CPU is the reference."""

from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.errors import TrainingError
from posenet.training.step import TrainStep
from tests.helpers.device_training import (
    FROZEN_NORM,
    TrainedSteps,
    assert_same_training,
    build_small_step,
    device_runtime,
    host_copy,
    largest_difference,
    pin_batch,
    run_on_devices,
    small_batch,
    train_small_network,
)
from tests.helpers.process_groups import need_processes, single_process_group
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import CPU, Recorder, last, train_tiny

FLOAT32_TOLERANCE = 1e-4
REDUCED_TOLERANCE = 0.02
AMPS = ["off", "bf16", "fp16"]
FIXED_SCALE = "train.loss_scale=16"
"""A loss scale that fp16 needs not adapt, so that no step is skipped."""


@pytest.mark.parametrize(
    "overrides",
    [(), ("train.channels_last=true",), ("optim.max_grad_norm=1",)],
    ids=["plain", "channels_last", "clipped"],
)
def test_three_steps_equal_those_of_the_cpu(accelerator: torch.device, overrides: tuple[str, ...]) -> None:
    reference = train_small_network(CPU, FROZEN_NORM, *overrides)
    assert_same_training(train_small_network(accelerator, FROZEN_NORM, *overrides), reference, FLOAT32_TOLERANCE)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_reduced_precision_trains_like_float32(device: torch.device, amp: str) -> None:
    reference = train_small_network(CPU, FROZEN_NORM)
    trained = train_small_network(device, FROZEN_NORM, f"train.amp='{amp}'", FIXED_SCALE)
    assert trained.losses == pytest.approx(reference.losses, rel=REDUCED_TOLERANCE)
    assert largest_difference(trained.weights, reference.weights)[0] > 0  # the precision was used


@pytest.mark.parametrize("amp", AMPS)
def test_a_batch_with_a_bad_loss_changes_nothing(device: torch.device, amp: str) -> None:
    train_step, model = build_small_step(device_runtime(device), FROZEN_NORM, f"train.amp='{amp}'", FIXED_SCALE)
    train_step([small_batch()])
    before = state_of(train_step)
    hook = model.register_forward_hook(lambda module, _, terms: terms * float("nan"))
    result = train_step([small_batch(1)])
    hook.remove()
    assert result.loss is None
    assert find_differences(state_of(train_step), before) == []
    train_step([small_batch()])
    assert find_differences(state_of(train_step), before) != []


def state_of(train_step: TrainStep) -> dict[str, object]:
    """A copy of the weights, the BatchNorm statistics and the means of the gradient in host memory."""
    states = train_step.optimizer.state_dict()["state"]
    assert states, "the optimizer has no means of gradients yet"
    means = {str(number): state["exp_avg"] for number, state in states.items()}
    return {"model": host_copy(train_step.model.state_dict()), "means": host_copy(means)}


@pytest.mark.parametrize("amp", AMPS)
def test_a_run_with_average_accumulation_and_clipping_equals_that_of_the_cpu(
    stores: dict[str, Path], tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    settings = ["average.kind=ema", "optim.accumulate=2", "optim.max_grad_norm=5", FIXED_SCALE, FROZEN_NORM]
    losses = {}
    for name, device, precision in (("cpu", CPU, "off"), ("device", accelerator, amp)):
        recorder = Recorder()
        overrides = [*settings, f"train.device={device}", f"train.amp={precision}"]
        train_tiny(stores, tmp_path / name, *overrides, callbacks=[recorder], max_steps=4)
        losses[name] = recorder.losses
    tolerance = FLOAT32_TOLERANCE if amp == "off" else REDUCED_TOLERANCE
    assert len(losses["cpu"]) == 4
    assert losses["device"] == pytest.approx(losses["cpu"], rel=tolerance)
    difference, name = largest_difference(last(tmp_path / "device")["model"], last(tmp_path / "cpu")["model"])
    assert difference <= tolerance, f"the average of {name} differs by {difference:.1e}"


def test_batches_are_copied_from_pinned_memory_without_races(accelerator: torch.device) -> None:
    train_step, _ = build_small_step(device_runtime(CPU), FROZEN_NORM)
    expected = [train_step([small_batch(seed)]).loss for seed in range(6)]
    train_step, _ = build_small_step(device_runtime(accelerator), FROZEN_NORM)
    losses = [train_step([pin_batch(small_batch(seed))]).loss for seed in range(6)]
    assert losses == pytest.approx(expected, rel=FLOAT32_TOLERANCE)


def test_memory_does_not_grow(accelerator: torch.device) -> None:
    module = torch.get_device_module(accelerator)
    if not hasattr(module, "memory_allocated"):
        pytest.skip(f"{accelerator.type} does not report its memory")
    train_step, _ = build_small_step(device_runtime(accelerator))
    readings = {}
    for step in range(1, 201):
        train_step([small_batch()])
        if step in (10, 200):
            readings[step] = module.memory_allocated(accelerator)
    assert readings[200] == readings[10], "a step keeps tensors: look for references to the results of earlier steps"


def test_too_little_memory_names_the_batch_size(stores: dict[str, Path], tmp_path: Path, cuda: torch.device) -> None:
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(TrainingError, match="cuda:0 has too little memory; lower train.batch_size"):
            train_tiny(stores, tmp_path / "run", "train.device=cuda:0", "model.width=512")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_compiled_network_trains_like_an_eager_one(cuda: torch.device) -> None:
    eager = train_small_network(cuda, FROZEN_NORM)
    compiled = train_small_network(cuda, FROZEN_NORM, "parallel.compile=true")
    assert_same_training(compiled, eager, 1e-3)


def run(stores: dict[str, Path], folder: Path, device: torch.device, *overrides: str, **options: Any) -> TrainedSteps:
    """Train a tiny network in ``folder``; ``options`` are arguments of ``posenet.train``."""
    recorder = Recorder()
    settings = ["train.channels_last=false", "average.kind=ema", f"train.device={device}", *overrides]
    train_tiny(stores, folder, *settings, callbacks=[recorder], **options)
    return TrainedSteps(recorder.losses, last(folder)["model"])


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_four_and_four_steps_are_eight_steps_to_the_bit(
    stores: dict[str, Path], tmp_path: Path, accelerator: torch.device, amp: str
) -> None:
    settings = (f"train.amp={amp}", "train.deterministic=true")
    whole = run(stores, tmp_path / "whole", accelerator, *settings, max_steps=8)
    first = run(stores, tmp_path / "parts", accelerator, *settings, max_steps=4)
    rest = run(stores, tmp_path / "parts", accelerator, *settings, max_steps=8, resume=True)
    assert first.losses + rest.losses == whole.losses
    states = [last(tmp_path / name) for name in ("parts", "whole")]
    for state in states:
        assert {tensor.device for tensor in state["model"].values()} == {CPU}
        del state["config"]["checkpoint"]["path"]
    assert find_differences(*states) == []


def test_a_run_moves_from_the_device_to_the_cpu_and_back(
    stores: dict[str, Path], tmp_path: Path, accelerator: torch.device
) -> None:
    settings = [FROZEN_NORM, "train.amp=off"]
    whole = run(stores, tmp_path / "cpu", CPU, *settings, max_steps=6)
    losses = []
    for steps, device in ((2, accelerator), (4, CPU), (6, accelerator)):
        part = run(stores, tmp_path / "moving", device, *settings, max_steps=steps, resume=steps > 2)
        losses += part.losses
    assert_same_training(TrainedSteps(losses, part.weights), whole, FLOAT32_TOLERANCE)
    momentum, expected_momentum = (
        {str(key): value["momentum_buffer"] for key, value in last(tmp_path / name)["optimizer"]["state"].items()}
        for name in ("moving", "cpu")
    )
    assert momentum
    assert largest_difference(momentum, expected_momentum)[0] <= 100 * FLOAT32_TOLERANCE


def test_a_process_group_of_one_process_trains_like_no_group(accelerator: torch.device) -> None:
    """The group uses the backend of the device, such as NCCL."""
    plain = train_small_network(accelerator, FROZEN_NORM)
    with single_process_group() as runtime:
        runtime.select_device(accelerator.type)
        distributed = train_small_network(accelerator, FROZEN_NORM, runtime=runtime)
    assert_same_training(distributed, plain, 1e-5)


def test_two_processes_train_like_one_and_their_batch_norms_agree(
    accelerators: list[torch.device], tmp_path: Path
) -> None:
    (first, first_differences), (second, second_differences) = run_on_devices(2, accelerators[0].type, tmp_path)
    assert_same_training(second, first, 0)
    assert_same_training(first, train_small_network(CPU, FROZEN_NORM), FLOAT32_TOLERANCE)
    for name, difference in (first_differences | second_differences).items():
        assert difference <= FLOAT32_TOLERANCE, f"{name} of the two kinds of BatchNorm: {difference:.1e}"


def test_data_parallel_trains_like_one_device(accelerators: list[torch.device]) -> None:
    runtime = need_processes().DataParallelRuntime()
    runtime.select_device(accelerators[0].type)
    assert runtime.devices == accelerators
    trained = train_small_network(accelerators[0], FROZEN_NORM, runtime=runtime)
    assert_same_training(trained, train_small_network(CPU, FROZEN_NORM), FLOAT32_TOLERANCE)
