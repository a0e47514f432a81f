"""Speed of the training step and of its stages."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from posenet.benchmark.network import count_gflop, matmul_gflop_per_s
from posenet.benchmark.report import Report, percent
from posenet.benchmark.targets import standing_people
from posenet.benchmark.timing import Stopwatch
from posenet.data.loader import Batch
from posenet.devices.capabilities import peak_memory
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.model.posenet import PoseNet
from posenet.settings import MAP_STRIDE, Config
from posenet.training.freezing import freeze, set_train_mode
from posenet.training.loss_guard import LossGuard
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import make_optimizer, set_lr
from posenet.training.setup import build_network, prepare_network
from posenet.training.train_step import TrainStep

PEOPLE = 5
"""People in each image of the synthetic batch."""

LEARNING_RATE = 1e-12
"""So small that the loss does not change; the learning rate does not affect the run time."""


def synthetic_batch(config: Config, seed: int = 0) -> Batch:
    """Build a batch of noise images with ``PEOPLE`` standing people each; all masks are 1."""
    rng = np.random.default_rng(seed)
    size = config.train.size
    batch_size = config.train.batch_size
    joints = np.stack([standing_people(rng, PEOPLE, size, config.model.skeleton) for _ in range(batch_size)])
    cells = (size[0] // MAP_STRIDE, size[1] // MAP_STRIDE)
    mask = torch.full((batch_size, *cells), 255, dtype=torch.uint8)
    images = torch.from_numpy(rng.integers(0, 256, (batch_size, *size, 3), np.uint8))
    return Batch(images, torch.from_numpy(joints), mask, mask.clone(), torch.arange(batch_size))


def build_train_step(config: Config, runtime: Runtime) -> tuple[TrainStep, ModelWithLoss]:
    """Build the training step of a run with a new network, and the model that it trains."""
    network = prepare_network(build_network(config, fine_tune=False), config, runtime)
    model = ModelWithLoss.from_config(network, config)
    optimizer = make_optimizer(network, config.optim)
    set_lr(optimizer, LEARNING_RATE)
    set_train_mode(model)
    scaler = make_grad_scaler(runtime.device, model.amp, config.train.loss_scale)
    guard = LossGuard(config.guard)
    train_step = TrainStep(runtime.wrap(model), optimizer, scaler, guard, runtime, config.optim.max_grad_norm)
    return train_step, model


def measure_step(config: Config, train_step: TrainStep, model: ModelWithLoss, repeats: int, matmul_side: int) -> Report:
    """Measure optimizer steps that all train on the same synthetic batch.

    ``train_step`` trains ``model``, as ``build_train_step`` returns them. The baseline is a product of matrices of
    ``matmul_side`` rows and columns.
    """
    runtime = train_step.runtime
    amp = model.amp
    batch_size = config.train.batch_size
    height, width = config.train.size
    batch = synthetic_batch(config).to(runtime.device)
    watch = _time_stages(train_step, model, batch, repeats)
    peak_bytes = peak_memory(runtime.device)
    peak_gib = None if peak_bytes is None else peak_bytes / 2**30
    matmul_speed = matmul_gflop_per_s(runtime, amp, matmul_side)
    gflop = count_step_gflop(config)

    stages = watch.stage_medians()
    step = watch.round_median()
    speed = gflop / step
    samples_per_s = batch_size / step
    rows = [(stage, 1000 * seconds, percent(seconds, step)) for stage, seconds in stages.items()]
    rows.append(("whole step", 1000 * step, percent(step, step)))
    notes = [
        f"{samples_per_s:.3g} samples/s; the batch is in memory, so the step never waits for data",
        "targets includes saving the BatchNorm statistics; backward includes the guard's vote and the gradient norm",
    ]
    if peak_gib is not None:
        notes.append(f"peak memory of the device: {peak_gib:.3g} GiB")
    notes.append(
        f"baseline: the network needs {gflop:.3g} GFLOP per step and reaches {speed:.3g} GFLOP/s, "
        f"{percent(speed, matmul_speed)} of the {matmul_speed:.3g} GFLOP/s of a matrix product"
    )
    return Report(
        title=f"train: batch {batch_size}, {height} x {width}, {PEOPLE} people per image, amp {amp}",
        header=("stage", "ms", "of the step"),
        rows=rows,
        numbers={
            "samples_per_s": samples_per_s,
            "step_ms": 1000 * step,
            "forward_ms": 1000 * sum(stages.get(stage, 0.0) for stage in ("targets", "network", "loss", "forward")),
            "backward_ms": 1000 * stages["backward"],
            "update_ms": 1000 * stages["update"],
            "stage_ms": {stage: 1000 * seconds for stage, seconds in stages.items()},
            "step_gflop": gflop,
            "step_gflop_per_s": speed,
            "matmul_gflop_per_s": matmul_speed,
            "share_of_peak": speed / matmul_speed,
            "batch_size": batch_size,
            "input_size": [height, width],
            "amp": amp,
            "peak_memory_gib": peak_gib,
        },
        notes=notes,
    )


def count_step_gflop(config: Config) -> float:
    """Count the operations of the network's forward and backward pass, in GFLOP; frozen parameters need fewer."""
    with torch.device("meta"):
        network = PoseNet.from_config(config)
        images = torch.empty(config.train.batch_size, 3, *config.train.size)
    freeze(network, config.train.freeze)

    def forward_and_backward() -> None:
        sums = [maps.sum() for scales in network(images) for maps in scales]
        torch.autograd.backward(sums)

    return count_gflop(forward_and_backward)


def _time_stages(train_step: TrainStep, model: ModelWithLoss, batch: Batch, repeats: int) -> Stopwatch:
    """Run one step to warm up and ``repeats`` timed steps; hooks read the clock at the end of each stage."""
    watch = Stopwatch(train_step.runtime.synchronize)

    def end_of_stage(stage: str, *_: object) -> None:
        watch.lap(stage)

    last_stage = "forward" if model.is_compiled else "loss"
    hooks = [
        model.register_forward_hook(partial(end_of_stage, last_stage)),
        train_step.optimizer.register_step_pre_hook(partial(end_of_stage, "backward")),
    ]
    if not model.is_compiled:  # ``torch.compile`` makes one graph of the three stages
        hooks.append(model.renderer.register_forward_hook(partial(end_of_stage, "targets")))
        hooks.append(model.network.register_forward_hook(partial(end_of_stage, "network")))
    for round_index in range(repeats + 1):
        watch.start_round()
        pending = train_step([batch])
        watch.lap("update")
        result = pending.read()
        if result.loss is None:
            raise TrainingError(
                f"the loss guard skipped the step (loss {result.bad_value}); benchmark another configuration"
            )
        if round_index == 0:
            watch.reset()
    for hook in hooks:
        hook.remove()
    return watch
