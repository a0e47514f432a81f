"""How fast the training step is, and where its time goes."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from posenet.benchmark.network import count_gflop, matmul_gflop_per_s
from posenet.benchmark.report import Report, share
from posenet.benchmark.targets import standing_people
from posenet.benchmark.timing import Stopwatch
from posenet.data.dataset import Batch
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.model.posenet import PoseNet
from posenet.settings import Config
from posenet.skeleton import COCO, Skeleton
from posenet.training.freezing import freeze, set_train_mode
from posenet.training.loss_guard import LossGuard
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import make_optimizer, set_lr
from posenet.training.setup import prepare_network
from posenet.training.trainer import TrainStep

PEOPLE = 5
"""People in every image of the synthetic batch."""


def synthetic_batch(batch_size: int, size: tuple[int, int], seed: int = 0, skeleton: Skeleton = COCO) -> Batch:
    """A batch of noise with ``PEOPLE`` standing people in every image; ``size`` is (height, width)."""
    rng = np.random.default_rng(seed)
    joints = np.stack([standing_people(rng, PEOPLE, size, skeleton) for _ in range(batch_size)])
    cells = torch.full((batch_size, size[0] // 4, size[1] // 4), 255, dtype=torch.uint8)
    images = torch.from_numpy(rng.integers(0, 256, (batch_size, *size, 3), np.uint8))
    return Batch(images, torch.from_numpy(joints), cells, cells.clone(), torch.arange(batch_size))


def make_train_step(
    config: Config, runtime: Runtime, network: PoseNet | None = None
) -> tuple[TrainStep, ModelWithLoss]:
    """A training step as in a run, and the model that it trains.

    Its learning rate is tiny, which does not change the time and keeps the loss where it starts.

    Args:
        network: None makes a new one.
    """
    network = network or PoseNet.from_config(config)
    freeze(network, config.train.freeze)
    network = prepare_network(network, config, runtime)
    model = ModelWithLoss.from_config(network, config)
    optimizer = make_optimizer(network, config.optim)
    set_lr(optimizer, 1e-12)
    set_train_mode(model)
    scaler = make_grad_scaler(runtime.device, config.train.amp, config.train.loss_scale)
    guard = LossGuard(config.guard)
    step = TrainStep(runtime.wrap(model), optimizer, scaler, guard, runtime, config.optim.max_grad_norm)
    return step, model


def measure_step(
    train_step: TrainStep, model: ModelWithLoss, shadow: PoseNet, batch: Batch, repeats: int, matmul_side: int
) -> Report:
    """One optimizer step on one batch, again and again.

    Args:
        train_step: trains ``model`` with a tiny learning rate, so that the loss stays where it is.
        shadow: the same network with the same frozen parameters on the meta device, for counting.
        batch: on the runtime's device.
    """
    runtime = train_step.runtime
    seconds, whole = _stages(train_step, model, batch, repeats)
    memory = _peak_memory_gib(runtime.device)
    peak = matmul_gflop_per_s(runtime, model.amp, matmul_side)
    samples, height, width = batch.images.shape[:3]
    ghost = torch.empty(samples, 3, height, width, device="meta")
    gflop = count_gflop(lambda: _sum(shadow(ghost)).backward())
    speed = gflop / whole
    forward = sum(seconds[stage] for stage in ("targets", "network", "loss"))
    return Report(
        title=f"train: batch {samples}, {height} x {width}, {PEOPLE} people an image, amp {model.amp}",
        header=("stage", "ms", "of the step"),
        rows=[
            *((stage, 1000 * time, share(time, whole)) for stage, time in seconds.items()),
            ("whole step", 1000 * whole, share(whole, whole)),
        ],
        numbers={
            "samples_per_s": samples / whole,
            "step_ms": 1000 * whole,
            "forward_ms": 1000 * forward,
            "backward_ms": 1000 * seconds["backward"],
            "update_ms": 1000 * seconds["update"],
            "stage_ms": {stage: 1000 * time for stage, time in seconds.items()},
            "step_gflop": gflop,
            "step_gflop_per_s": speed,
            "matmul_gflop_per_s": peak,
            "share_of_peak": speed / peak,
            "batch_size": samples,
            "input_size": [height, width],
            "amp": model.amp,
            "peak_memory_gib": memory,
        },
        notes=[
            f"{samples / whole:.3g} samples/s; the batch lies in memory, so there is no data wait",
            "targets includes the copy of BatchNorm's statistics, backward the guard's vote and the gradient's norm",
            *([] if memory is None else [f"at most {memory:.3g} GiB of the device's memory in use"]),
            f"baseline: {gflop:.3g} GFLOP of the network a step at {speed:.3g} GFLOP/s, {share(speed, peak)} of the "
            f"{peak:.3g} GFLOP/s of a matrix product",
        ],
    )


def _stages(train_step: TrainStep, model: ModelWithLoss, batch: Batch, repeats: int) -> tuple[dict[str, float], float]:
    """Median seconds of every stage and of the whole step; the first step warms up."""
    watch = Stopwatch(train_step.runtime.synchronize)
    stages = {"targets": model.renderer, "network": model.network, "loss": model.loss}
    hooks = [module.register_forward_hook(partial(_lap, watch, stage)) for stage, module in stages.items()]
    hooks.append(train_step.optimizer.register_step_pre_hook(partial(_lap, watch, "backward")))
    for turn in range(repeats + 1):
        watch.start_round()
        outcome = train_step([batch])
        watch.lap("update")
        if outcome.loss is None:
            raise TrainingError(f"the step was dropped (loss {outcome.bad_value}); benchmark another configuration")
        if not turn:
            watch.clear()
    for hook in hooks:
        hook.remove()
    return watch.medians(), watch.total()


def _peak_memory_gib(device: torch.device) -> float | None:
    """The most that tensors took on an accelerator so far; None on a CPU."""
    return None if device.type == "cpu" else torch.get_device_module(device).max_memory_allocated(device) / 2**30


def _lap(watch: Stopwatch, stage: str, *_: object) -> None:
    watch.lap(stage)


def _sum(predictions: list[list[Tensor]]) -> Tensor:
    return sum(maps.sum() for scales in predictions for maps in scales)
