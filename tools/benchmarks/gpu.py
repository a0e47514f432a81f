"""Training on an accelerator: what each option gains, what checks, processes and checkpoints cost; expect half an hour.

An error becomes a row of its table, and the tables are written after each of them, because time on a GPU is precious.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measuring import Table, count_flop, matmul_flop_per_s, measure
from benchmarks.train import build_steps
from posenet.checkpoints.writer import copy_to_host
from posenet.devices.device import cudnn_flags, has_tf32, peak_memory, supports_channels_last, uses_cudnn
from posenet.devices.precision import DTYPES
from posenet.devices.runtime import DistributedRuntime
from posenet.errors import ConfigError
from posenet.messages import to_single_line
from posenet.settings import Config


@dataclass(frozen=True)
class Variant:
    """How steps are computed. Each of ``VARIANTS`` adds one option to those before it."""

    name: str
    settings: dict[str, Any]
    """Settings of the section ``train``; ``compile`` is that of ``parallel``."""
    tf32: bool = True
    cudnn_benchmark: bool = False

    def apply(self, config: Config, batch_size: int) -> Config:
        """The configuration of a run with these options."""
        options = dict(self.settings)
        parallel = dataclasses.replace(config.parallel, compile=options.pop("compile", False))
        train = dataclasses.replace(config.train, batch_size=batch_size, **options)
        return dataclasses.replace(config, train=train, parallel=parallel)

    def is_available(self, device: torch.device) -> bool:
        """Whether a device has the options."""
        if self.name == "fp16":
            return device.type != "cpu"  # its matrix products in fp16 take many times as long as in float32
        if self.name == "TF32":
            return has_tf32(device)
        if self.name == "+ channels_last":
            return supports_channels_last(device)
        return not self.cudnn_benchmark or uses_cudnn(device)


_BF16 = {"amp": "bf16", "channels_last": False}
_CHANNELS_LAST = {"amp": "bf16", "channels_last": True}
VARIANTS = (
    Variant("float32", {"amp": "off", "channels_last": False}, tf32=False),
    Variant("TF32", {"amp": "off", "channels_last": False}),
    Variant("fp16", {"amp": "fp16", "channels_last": False}),
    Variant("bf16", _BF16),
    Variant("+ channels_last", _CHANNELS_LAST),
    Variant("+ cudnn.benchmark", _CHANNELS_LAST, cudnn_benchmark=True),
    Variant("+ compile", {**_CHANNELS_LAST, "compile": True}, cudnn_benchmark=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[4, 8, 16, 32], metavar="N", help="batch sizes of the steps"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.set_defaults(device="auto")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """Time training steps of all variants, then with the fastest of them what a run costs besides its steps."""
    if device.type == "cpu" and args.device == "auto":
        raise ConfigError("PyTorch finds no accelerator here; --device cpu measures the CPU, with a small network")
    steps = Table(
        title=f"training steps: {config.model.stacks} stacks of width {config.model.width} at "
        f"{config.train.size[0]} x {config.train.size[1]}; each line adds one option",
        header=("variant", "batch", "ms/step", "images/s", "of a matrix product", "cost of checks", "peak GiB"),
        notes=["cost of checks: reading the losses and the gradient norm in each step"],
        numbers={"steps": []},
    )
    fastest: tuple[float, Variant, int] | None = None
    for variant in VARIANTS:
        for batch_size in args.batch_sizes:
            is_left_out = args.no_compile and variant.settings.get("compile")
            if is_left_out or not variant.is_available(device):
                continue
            speed = _add_step(steps, config, device, variant, batch_size, args.repeats)
            if speed and (fastest is None or speed > fastest[0]):
                fastest = speed, variant, batch_size
            yield steps
    if fastest is None:
        return
    _, variant, batch_size = fastest
    settings = variant.apply(config, batch_size)
    run_table = Table(title=f"a run besides its steps ({variant.name}, batch {batch_size})", header=("part", "value"))
    with cudnn_flags(benchmark=variant.cudnn_benchmark, tf32=variant.tf32):
        for part in (_time_processes, _time_checkpoint):
            _try(run_table, part.__name__, lambda part=part: part(run_table, settings, device, args.repeats))
            _free_memory(device)
            yield run_table


def _add_step(
    table: Table, config: Config, device: torch.device, variant: Variant, batch_size: int, repeats: int
) -> float | None:
    """Add the row of one variant; return its images per second, None if it could not be measured."""
    settings = variant.apply(config, batch_size)
    speed = None

    def time_step() -> None:
        nonlocal speed
        _free_memory(device)
        with cudnn_flags(benchmark=variant.cudnn_benchmark, tf32=variant.tf32):
            steps = build_steps(settings, device)
            flop = count_flop(steps.plain) if not settings.parallel.compile else None
            seconds = measure({"checked": steps.checked, "plain": steps.plain}, repeats)
            limit = matmul_flop_per_s(device, DTYPES[steps.model.amp], repeats)
        speed = batch_size / seconds["checked"]
        memory = (peak_memory(device) or 0) / 2**30
        share = None if flop is None else flop / seconds["checked"] / limit
        cost = seconds["checked"] / seconds["plain"] - 1
        shown_share = None if share is None else f"{share:.0%}"
        table.rows.append(
            (variant.name, batch_size, 1000 * seconds["checked"], speed, shown_share, f"{cost:+.1%}", memory)
        )
        numbers = {"variant": variant.name, "batch_size": batch_size, "step_ms": 1000 * seconds["checked"]}
        numbers |= {"images_per_s": speed, "share_of_matmul": share, "cost_of_checks": cost, "peak_gib": memory}
        table.numbers["steps"].append(numbers)

    _try(table, variant.name, time_step, batch_size)
    return speed


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
    table.rows.append(("DistributedDataParallel with one process", f"{cost:+.1%}"))
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
    table.rows.append(("copying the weights to the host", f"{seconds:.2f} s for {num_bytes / 1e9:.2f} GB"))
    table.numbers["weights_copy_s"] = seconds


def _try(table: Table, name: str, task: Callable[[], None], batch_size: int | None = None) -> None:
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
