"""A training step: milliseconds, the share of a matrix product's speed, memory, and what its checks cost."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.utils import get_total_norm

from benchmarks.measuring import Table, count_flop, matmul_flop_per_s, measure, random_batch
from posenet.data.dataset import Batch
from posenet.devices.device import peak_memory
from posenet.devices.precision import DTYPES, make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.settings import Config
from posenet.training.bad_steps import BadStepPolicy
from posenet.training.optimizer import make_optimizer, set_train_mode
from posenet.training.step import ModelWithLoss, TrainStep, build_model


class Steps(NamedTuple):
    """A training step, and the same work without its checks."""

    checked: Callable[[], object]
    """``TrainStep``: it looks at the loss and the gradient norm, for which the host waits for the device."""
    plain: Callable[[], object]
    """Forward, backward, gradient norm and update; the host waits for nothing."""
    model: ModelWithLoss
    batch: Batch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark; precision and so on are settings (``--set train.amp=bf16``)."""


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time the steps in turn."""
    steps = build_steps(config, device)
    flop = count_flop(steps.plain) / config.train.batch_size
    seconds = measure({"step": steps.checked, "without checks": steps.plain}, args.repeats)
    limit = matmul_flop_per_s(device, DTYPES[steps.model.amp], args.repeats)
    height, width = config.train.size
    table = Table(
        title=f"train: {config.model.stacks} stacks of width {config.model.width}, batches of "
        f"{config.train.batch_size} at {height} x {width}, {steps.model.amp}",
        header=("task", "ms/step", "images/s", "of a matrix product"),
        notes=["without checks: the host neither reads the loss nor the gradient norm"],
    )
    for name, value in seconds.items():
        speed = config.train.batch_size / value
        table.rows.append((name, 1000 * value, speed, f"{flop * speed / limit:.0%}"))
    table.numbers = {
        "step_ms": 1000 * seconds["step"],
        "images_per_s": config.train.batch_size / seconds["step"],
        "share_of_matmul": flop * config.train.batch_size / seconds["step"] / limit,
        "cost_of_checks": seconds["step"] / seconds["without checks"] - 1,
        "peak_memory_gib": None if device.type == "cpu" else (peak_memory(device) or 0) / 2**30,
    }
    return [table]


def build_steps(config: Config, device: torch.device, runtime: Runtime | None = None) -> Steps:
    """Steps of the configured network on a batch of noise, as ``posenet.train`` makes them."""
    runtime = runtime or Runtime()
    runtime.device = device
    network = PoseNet.from_config(config)
    model = build_model(config, network, device)
    optimizer = make_optimizer(network, dataclasses.replace(config.optim, lr=1e-9))
    scaler = make_grad_scaler(device, model.amp, config.train.loss_scale)
    policy = BadStepPolicy(dataclasses.replace(config.guard, factor=0.0, threshold=float("inf")))
    wrapped = runtime.wrap(model)
    set_train_mode(model)
    step = TrainStep(wrapped, optimizer, scaler, policy, runtime, config.optim.max_grad_norm)
    batch = random_batch(config, device)

    def plain() -> None:
        losses = wrapped(batch.images, batch.joints, batch.person_mask, batch.mask_miss)
        losses.mean().backward()
        get_total_norm([parameter.grad for parameter in network.parameters()])
        optimizer.step()
        optimizer.zero_grad()

    return Steps(lambda: step([batch]), plain, model, batch)
