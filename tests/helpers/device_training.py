"""Training steps on any device, and comparing their results with those of the CPU."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posenet.data.dataset import Batch
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.settings import load_config
from posenet.training.bad_steps import BadStepPolicy
from posenet.training.optimizer import freeze, make_optimizer, set_train_mode
from posenet.training.step import ModelWithLoss, TrainStep, build_model
from tests.helpers.accelerators import check_simulation
from tests.helpers.process_groups import free_port, need_processes

SMALL_NETWORK = (
    "model.stacks=1 model.width=16 model.growth=8 model.conv_std=0.05 train.input_size=64 train.batch_size=2 "
    "train.amp='off' train.channels_last=false"
).split()
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


def device_runtime(device: torch.device) -> Runtime:
    """A runtime of one process on a device."""
    runtime = Runtime()
    runtime.device = device
    return runtime


def build_small_step(runtime: Runtime, *overrides: str) -> tuple[TrainStep, ModelWithLoss]:
    """The training step of ``SMALL_NETWORK`` on the runtime's device, always with the same initial weights."""
    config = load_config(None, [*SMALL_NETWORK, *overrides])
    torch.manual_seed(0)
    network = PoseNet.from_config(config)
    freeze(network, config.train.freeze)
    model = build_model(config, network, runtime.device)
    wrapped = runtime.wrap(model)
    set_train_mode(model)
    optimizer = make_optimizer(network, config.optim)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    scaler = make_grad_scaler(runtime.device, model.amp, config.train.loss_scale)
    return TrainStep(
        wrapped, optimizer, scaler, BadStepPolicy(config.guard), runtime, config.optim.max_grad_norm
    ), model


def small_batch(seed: int = 0, size: int = 2) -> Batch:
    """A batch of noise with people at random places for ``SMALL_NETWORK``, in host memory."""
    generator = torch.Generator().manual_seed(seed)
    joints = torch.rand(size, 4, 18, 3, generator=generator) * 64
    joints[..., 2] = 2
    return Batch(
        images=torch.randint(0, 256, (size, 64, 64, 3), dtype=torch.uint8, generator=generator),
        joints=joints,
        person_mask=torch.full((size, 16, 16), 255, dtype=torch.uint8),
        mask_miss=torch.full((size, 16, 16), 255, dtype=torch.uint8),
        image_ids=torch.arange(size),
    )


def train_small_network(
    device: torch.device, *overrides: str, steps: int = 3, runtime: Runtime | None = None
) -> TrainedSteps:
    """Train ``SMALL_NETWORK`` on one batch, of which each rank of ``runtime`` gets its share."""
    runtime = runtime or device_runtime(device)
    train_step, model = build_small_step(runtime, *overrides)
    share = Batch._make(
        value[runtime.rank :: runtime.world_size] if isinstance(value, Tensor) else value for value in small_batch()
    )
    losses = [train_step([share]).loss for _ in range(steps)]
    assert None not in losses, "the loss guard skipped a step: look at the losses that the device computes"
    return TrainedSteps(losses, host_copy(model.network.state_dict()))


def run_on_devices(world_size: int, device_type: str, folder: Path) -> list[tuple[TrainedSteps, dict[str, float]]]:
    """``train_small_network`` with frozen BatchNorm and ``compare_batch_norms`` on the first devices of a type.

    There is one process for each device; the results are in rank order. The processes are spawned, because a process
    that has used a device cannot be forked.
    """
    need_processes()
    arguments = (world_size, free_port(), device_type, folder)
    torch.multiprocessing.spawn(_run_device_rank, arguments, world_size)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _run_device_rank(rank: int, world_size: int, port: int, device_type: str, folder: Path) -> None:
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    runtime = need_processes().DistributedRuntime(timeout_minutes=1)
    runtime.select_device(device_type)
    assert runtime.device == torch.device(device_type, rank)
    with check_simulation():
        results = train_small_network(runtime.device, FROZEN_NORM, runtime=runtime), compare_batch_norms(runtime)
    torch.save(results, folder / f"{rank}.pt")
    runtime.close()


def compare_batch_norms(runtime: Runtime) -> dict[str, float]:
    """The differences between ``nn.SyncBatchNorm`` on the device and ``GroupBatchNorm2d`` on the CPU."""
    generator = torch.Generator().manual_seed(runtime.rank)
    values = torch.randn(2, 8, 6, 5, generator=generator)
    gradient = torch.randn(2, 8, 6, 5, generator=generator)
    results = []
    converted = {
        runtime.device: runtime.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(8))),
        torch.device("cpu"): need_processes().GroupBatchNorm2d.convert(nn.Sequential(nn.BatchNorm2d(8))),
    }
    for device, norm in converted.items():
        norm.to(device)
        x = values.to(device).requires_grad_()
        output = norm(x)
        output.backward(gradient.to(device))
        results.append(host_copy({"output": output, "gradient": x.grad, **norm.state_dict()}))
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
            f"step {step}: the loss is {loss}, on the CPU {expected}. If this is step 1, the forward pass differs; "
            "else the gradient or the optimizer"
        )
    difference, name = largest_difference(trained.weights, reference.weights)
    assert difference <= tolerance, f"{name} differs by {difference:.1e} of its largest value after the same losses"


def pin_batch(batch: Batch) -> Batch:
    """A copy of a batch in pinned memory, as a loader with ``pin_memory`` yields it."""
    return Batch._make(value.pin_memory() if isinstance(value, Tensor) else value for value in batch)
