"""Training steps on any device, and comparing their results with those of the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from posenet.benchmark.train import build_train_step, synthetic_batch
from posenet.training.device_prefetch import prefetch_to_device
from posenet.training.train_step import TrainStep
from torch import Tensor, nn

from posenet.data.batch import Batch
from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from posenet.settings import load_config
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import set_lr

SMALL_NETWORK = (
    "model.stacks=1",
    "model.width=16",
    "model.growth=8",
    "model.conv_std=0.05",
    "train.input_size=64",
    "train.batch_size=2",
    "train.amp='off'",
    "train.channels_last=false",
)
FROZEN_NORM = "train.freeze=['*.norm.*']"
"""Without it, results of several steps cannot be compared: BatchNorm over the few cells of a small network multiplies
rounding errors in every layer, and two correct devices would agree to two digits only."""
LEARNING_RATE = 1e-4
"""Three steps lower the loss of ``SMALL_NETWORK`` by one percent, a hundred times the tolerance of the tests."""


class TrainedSteps(NamedTuple):
    """The results of some training steps."""

    losses: list[float]
    weights: dict[str, Tensor]
    """On the CPU."""


def build_small_step(
    device: torch.device, *overrides: str, runtime: Runtime | None = None
) -> tuple[TrainStep, ModelWithLoss]:
    """The training step of ``SMALL_NETWORK`` on a device, always with the same initial weights."""
    config = load_config(None, [*SMALL_NETWORK, *overrides])
    torch.manual_seed(0)
    train_step, model = build_train_step(config, runtime or Runtime(device))
    set_lr(train_step.optimizer, LEARNING_RATE)
    return train_step, model


def small_batch(train_step: TrainStep, *overrides: str, seed: int = 0) -> Any:
    """A batch for ``build_small_step``, where its wrapped module expects it."""
    return train_step.runtime.to_device(synthetic_batch(load_config(None, [*SMALL_NETWORK, *overrides]), seed))


def train_small_network(
    device: torch.device, *overrides: str, steps: int = 3, runtime: Runtime | None = None
) -> TrainedSteps:
    """Train ``SMALL_NETWORK`` on one batch."""
    train_step, model = build_small_step(device, *overrides, runtime=runtime)
    batch = small_batch(train_step, *overrides)
    losses = [train_step([batch]).read().loss for _ in range(steps)]
    assert None not in losses, "the loss guard skipped a step: look at the losses that the device computes"
    return TrainedSteps(losses, host_copy(model.network.state_dict()))


class RankResults(NamedTuple):
    """What ``run_rank`` returns."""

    trained: TrainedSteps
    """Steps with frozen BatchNorm, as ``train_small_network`` trains them, on the rank's share of the batch."""
    batch_norm_differences: dict[str, float]
    """Between ``nn.SyncBatchNorm`` and ``GroupBatchNorm2d``."""


def run_rank(runtime: Runtime) -> RankResults:
    """Everything that the tests of two processes need. One launch does it all, because it takes long to start one."""
    return RankResults(train_rank(runtime, [FROZEN_NORM]), compare_batch_norms(runtime))


def train_rank(runtime: Runtime, overrides: Sequence[str], steps: int = 3) -> TrainedSteps:
    """Train ``SMALL_NETWORK`` as ``train_small_network`` does, each rank with its share of the batch."""
    train_step, model = build_small_step(runtime.device, *overrides, runtime=runtime)
    batch = small_batch(train_step, *overrides)
    share = Batch._make(
        value[runtime.rank :: runtime.world_size] if isinstance(value, Tensor) else value for value in batch
    )
    losses = [train_step([share]).read().loss for _ in range(steps)]
    assert None not in losses
    return TrainedSteps(losses, host_copy(model.network.state_dict()))


def compare_batch_norms(runtime: Runtime) -> dict[str, float]:
    """The differences between ``nn.SyncBatchNorm`` and ``GroupBatchNorm2d`` on a device, for values of each rank."""
    generator = torch.Generator().manual_seed(runtime.rank)
    values = torch.randn(2, 8, 6, 5, generator=generator)
    gradient = torch.randn(2, 8, 6, 5, generator=generator)
    results = []
    for convert in (nn.SyncBatchNorm.convert_sync_batchnorm, GroupBatchNorm2d.convert):
        norm = convert(nn.Sequential(nn.BatchNorm2d(8))).to(runtime.device)[0]
        x = values.to(runtime.device).requires_grad_()
        output = norm(x)
        output.backward(gradient.to(runtime.device))
        results.append({"output": output, "gradient": x.grad, **norm.state_dict()})
    return {name: (results[0][name] - results[1][name]).abs().max().item() for name in results[0]}


def host_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of tensors in host memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def largest_difference(weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference of two state dicts relative to the largest value of its tensor, and that tensor's name."""
    assert weights.keys() == reference.keys()
    differences = [(0.0, "")]
    for name, expected in reference.items():
        scale = expected.abs().max().clamp(min=1e-3)
        difference = ((weights[name].to("cpu", expected.dtype) - expected).abs().max() / scale).item()
        if difference != 0:
            differences.append((math.inf if math.isnan(difference) else difference, name))
    return max(differences)


def assert_same_training(trained: TrainedSteps, reference: TrainedSteps, tolerance: float) -> None:
    """Compare losses and weights with those of the CPU; the message names the first step or tensor that differs."""
    for step, (loss, expected) in enumerate(zip(trained.losses, reference.losses, strict=True), start=1):
        assert math.isclose(loss, expected, rel_tol=tolerance), (
            f"step {step}: the loss is {loss}, on the CPU {expected}. If this is step 1, the forward pass differs: run "
            "tests/devices/test_device_modules.py; else the gradient or the optimizer"
        )
    difference, name = largest_difference(trained.weights, reference.weights)
    assert difference <= tolerance, f"{name} differs by {difference:.1e} of its largest value after the same losses"


def train_prefetched(device: torch.device, batches: int = 6) -> list[float]:
    """Train ``SMALL_NETWORK`` on batches that are copied ahead from pinned memory; return the losses."""
    train_step, _ = build_small_step(device, FROZEN_NORM)
    config = load_config(None, [*SMALL_NETWORK])
    pinned = (pin_batch(synthetic_batch(config, seed)) for seed in range(batches))
    results = []
    for batch in prefetch_to_device(pinned, train_step.runtime):
        results.append(train_step([batch]))
        del batch  # its memory is free for the copy of a later batch
    return [result.read().loss for result in results]


def pin_batch(batch: Batch) -> Batch:
    """A copy of a batch in pinned memory, as a loader with ``pin_memory`` yields it."""
    return Batch._make(value.pin_memory() if isinstance(value, Tensor) else value for value in batch)
