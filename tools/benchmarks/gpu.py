"""An accelerator: what each option gains in training, what checks, processes and checkpoints cost, and prediction.

An error becomes a row of its table, and the tables are written after each row, because time on a GPU is precious.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.measuring import Table, count_flop, matmul_flop_per_s, measure
from benchmarks.train import build_steps
from posenet.checkpoints.writer import copy_to_host
from posenet.devices.device import cudnn_flags, peak_memory, uses_cudnn
from posenet.devices.parallel import DistributedRuntime
from posenet.devices.precision import DTYPES, Amp
from posenet.errors import ConfigError
from posenet.messages import to_single_line
from posenet.model import layers
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import Config


@dataclass(frozen=True)
class Variant:
    """How steps are computed."""

    name: str
    settings: dict[str, Any]
    """Settings of the section ``train``."""
    tf32: bool = True
    cudnn_benchmark: bool = False
    all_algorithms: bool = False
    """Let cuDNN try more than the ten algorithms that it tries by default."""
    upsample_first: bool = False
    """Convolve enlarged maps, as the network did before it had transposed convolutions."""
    compile_options: dict[str, Any] | None = None
    """Arguments of ``torch.compile``; None does not compile."""

    def apply(self, config: Config, batch_size: int) -> Config:
        """The configuration of a run with these options, but not compiled."""
        parallel = dataclasses.replace(config.parallel, compile=False)
        train = dataclasses.replace(config.train, batch_size=batch_size, **self.settings)
        return dataclasses.replace(config, train=train, parallel=parallel)

    def is_available(self, device: torch.device) -> bool:
        """Whether a device has the options."""
        if self.name == "fp16":
            return device.type != "cpu"  # its matrix products in fp16 take many times as long as in float32
        if self.name == "TF32":
            return device.type == "cuda" and torch.cuda.is_tf32_supported()
        if self.name == "channels_last":
            return device.type in ("cpu", "cuda", "xpu")
        return not self.cudnn_benchmark or uses_cudnn(device)

    @contextlib.contextmanager
    def flags(self) -> Iterator[None]:
        """Within this context, the library of convolutions and the network have these options."""
        cudnn = torch.backends.cudnn
        with contextlib.ExitStack() as stack:
            stack.enter_context(cudnn_flags(benchmark=self.cudnn_benchmark, tf32=self.tf32))
            if self.all_algorithms:
                stack.callback(setattr, cudnn, "benchmark_limit", cudnn.benchmark_limit)
                cudnn.benchmark_limit = 0
            if self.upsample_first:
                stack.callback(setattr, layers, "MIN_CELLS_TO_TRANSPOSE", layers.MIN_CELLS_TO_TRANSPOSE)
                layers.MIN_CELLS_TO_TRANSPOSE = sys.maxsize
            yield


_FLOAT32 = {"amp": "off", "channels_last": False}
_CHANNELS_LAST = {"amp": "bf16", "channels_last": True}
_TUNED = {"coordinate_descent_tuning": True}
VARIANTS = (
    Variant("cudnn.benchmark", _CHANNELS_LAST, cudnn_benchmark=True),
    Variant("upsample-first", _CHANNELS_LAST, cudnn_benchmark=True, upsample_first=True),
    Variant("all-algorithms", _CHANNELS_LAST, cudnn_benchmark=True, all_algorithms=True),
    Variant("compile", _CHANNELS_LAST, cudnn_benchmark=True, compile_options={}),
    Variant("compile-upsample-first", _CHANNELS_LAST, cudnn_benchmark=True, upsample_first=True, compile_options={}),
    Variant("compile-tuned", _CHANNELS_LAST, cudnn_benchmark=True, compile_options={"options": _TUNED}),
    Variant("compile-graphs", _CHANNELS_LAST, cudnn_benchmark=True, compile_options={"mode": "reduce-overhead"}),
    Variant("channels_last", _CHANNELS_LAST),
    Variant("bf16", {"amp": "bf16", "channels_last": False}),
    Variant("fp16", {"amp": "fp16", "channels_last": False}),
    Variant("TF32", _FLOAT32),
    Variant("float32", _FLOAT32, tf32=False),
)
"""The most important ones first, because an interrupted benchmark keeps them."""
NOTES = [
    "float32, TF32, fp16, bf16, channels_last and cudnn.benchmark: each has the options of the one before it, but for "
    "the precision",
    "the others: cudnn.benchmark with one more option. upsample-first: maps are enlarged before their convolution; "
    "compile-graphs: CUDA graphs; compile-tuned: Inductor's coordinate descent",
    "cost of checks: reading the losses and the gradient norm in each step",
]
OTHER_PARTS = ("prediction", "processes", "checkpoint")
"""What is measured besides steps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64], metavar="N", help="batch sizes of the steps"
    )
    names = [*(variant.name for variant in VARIANTS), *OTHER_PARTS]
    parser.add_argument(
        "--measure",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"what to measure; by default all of {', '.join(names)}",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, metavar="M", help="begin no further measurement after so long"
    )
    parser.set_defaults(device="auto")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """Time training steps of all variants, then prediction, and what a run costs besides its steps."""
    if device.type == "cpu" and args.device == "auto":
        raise ConfigError("PyTorch finds no accelerator here; --device cpu measures the CPU, with a small network")
    deadline = time.monotonic() + 60 * args.minutes
    size = (
        f"{config.model.stacks} stacks of width {config.model.width} at {config.train.size[0]} x {config.train.size[1]}"
    )
    steps = Table(
        title=f"training steps: {size}",
        header=("variant", "batch", "ms/step", "images/s", "of a matrix product", "cost of checks", "peak GiB"),
        notes=list(NOTES),
        numbers={"steps": []},
    )
    variants = [variant for variant in VARIANTS if variant.name in args.measure and variant.is_available(device)]
    for variant in variants:
        for batch_size in args.batch_sizes:
            if time.monotonic() < deadline:
                _add_step(steps, config, device, variant, batch_size, args.repeats)
            else:
                steps.notes.append(f"not measured, for lack of time: {variant.name}, batch {batch_size}")
            yield steps
    others = Table(title=f"prediction, and a run besides its steps: {size}", header=("part", "batch", "value"))
    variant = next(variant for variant in VARIANTS if variant.is_available(device))
    batch_size = args.batch_sizes[0]
    settings = variant.apply(config, batch_size)
    tasks = {
        "prediction": lambda: _time_prediction(others, config, device, args.batch_sizes, args.repeats),
        "processes": lambda: _time_processes(others, settings, device, args.repeats),
        "checkpoint": lambda: _time_checkpoint(others, settings, device, args.repeats),
    }
    for name, task in tasks.items():
        if name not in args.measure:
            continue
        if time.monotonic() < deadline:
            _free_memory(device)
            with variant.flags():
                _try(others, name, task, batch_size)
        else:
            others.notes.append(f"not measured, for lack of time: {name}")
        yield others


def _add_step(
    table: Table, config: Config, device: torch.device, variant: Variant, batch_size: int, repeats: int
) -> None:
    """Add the row of one variant."""
    settings = variant.apply(config, batch_size)

    def time_step() -> None:
        _free_memory(device)
        with variant.flags():
            steps = build_steps(settings, device)
            flop = count_training_flop(settings)
            if variant.compile_options is not None:
                torch.compiler.reset()
                steps.model.compile(**variant.compile_options)
            seconds = measure({"checked": steps.checked, "plain": steps.plain}, repeats)
            limit = matmul_flop_per_s(device, DTYPES[steps.model.amp], repeats)
        speed = batch_size / seconds["checked"]
        memory = (peak_memory(device) or 0) / 2**30
        share = flop / seconds["checked"] / limit
        cost = seconds["checked"] / seconds["plain"] - 1
        table.rows.append(
            (variant.name, batch_size, 1000 * seconds["checked"], speed, f"{share:.0%}", f"{cost:+.1%}", memory)
        )
        numbers = {"variant": variant.name, "batch_size": batch_size, "step_ms": 1000 * seconds["checked"]}
        numbers |= {"images_per_s": speed, "share_of_matmul": share, "cost_of_checks": cost, "peak_gib": memory}
        table.numbers["steps"].append(numbers)

    _try(table, variant.name, time_step, batch_size)


def count_training_flop(config: Config) -> int:
    """Operations of a training step, which is not computed; a compiled one cannot be counted."""
    with torch.device("meta"):
        network = PoseNet.from_config(config)
        images = torch.empty(config.train.batch_size, 3, *config.train.size)
    return count_flop(lambda: sum(maps.sum() for scales in network(images) for maps in scales).backward())


def _time_prediction(
    table: Table, config: Config, device: torch.device, batch_sizes: Sequence[int], repeats: int
) -> None:
    """The network that prediction uses, in the precisions of the device."""
    network = PoseNet.from_config(config)
    table.numbers["prediction"] = []
    precisions: tuple[Amp, ...] = ("off", "bf16") if device.type == "cpu" else ("off", "fp16", "bf16")
    for amp in precisions:
        fused = FusedNetwork(network, amp).to(device)
        for batch_size in [1, *batch_sizes]:
            images = torch.rand(batch_size, 3, *config.train.size).to(device, memory_format=torch.channels_last)
            with torch.inference_mode():
                seconds = measure({"heatmaps": partial(fused.heatmaps, images)}, repeats)["heatmaps"]
            speed = batch_size / seconds
            table.rows.append((f"prediction, {amp}", batch_size, f"{speed:.4g} images/s"))
            table.numbers["prediction"].append({"amp": amp, "batch_size": batch_size, "images_per_s": speed})


def _time_processes(table: Table, config: Config, device: torch.device, repeats: int) -> None:
    """A step of DistributedDataParallel with one process, compared with a plain one."""
    runtime = DistributedRuntime()
    try:
        runtime.select_device(device.type)
        plain = build_steps(config, device)
        distributed = build_steps(config, device, runtime)
        seconds = measure({"plain": plain.checked, "distributed": distributed.checked}, repeats)
    finally:
        runtime.close()
    cost = seconds["distributed"] / seconds["plain"] - 1
    table.rows.append(("DistributedDataParallel with one process", config.train.batch_size, f"{cost:+.1%}"))
    table.numbers["cost_of_one_distributed_process"] = cost


def _time_checkpoint(table: Table, config: Config, device: torch.device, repeats: int) -> None:
    """How long training waits for the copy of a checkpoint."""
    steps = build_steps(config, device)
    state = steps.model.state_dict()
    started = time.perf_counter()
    for _ in range(repeats):
        copy_to_host(state)
    seconds = (time.perf_counter() - started) / repeats
    num_bytes = sum(tensor.nbytes for tensor in state.values())
    table.rows.append(("copying the weights to the host", None, f"{seconds:.2f} s for {num_bytes / 1e9:.2f} GB"))
    table.numbers["weights_copy_s"] = seconds


def _try(table: Table, name: str, task: Callable[[], None], batch_size: int) -> None:
    """Run a measurement; an error becomes a row."""
    try:
        task()
    except torch.OutOfMemoryError:
        table.rows.append((name, batch_size, "out of memory"))
    except Exception as error:
        table.rows.append((name, batch_size, f"failed: {to_single_line(str(error).partition('.')[0])}"))


def _free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
        torch.get_device_module(device).reset_peak_memory_stats(device)
