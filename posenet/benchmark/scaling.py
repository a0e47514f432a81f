"""What training in several processes gains, and what the distributed path costs."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenet.benchmark.report import Report, share
from posenet.benchmark.timing import medians
from posenet.benchmark.train import make_train_step, synthetic_batch
from posenet.devices.distributed import DistributedRuntime, device_of_rank
from posenet.devices.launch import launch
from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.settings import Config

FIRST_STEPS = 40


class HostReads(TorchFunctionMode):
    """Counts how often Python reads a number from a tensor, for which the host must wait for the device."""

    READS = {Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__float__, Tensor.__int__}

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        kinds: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += func in self.READS
        return func(*args, **(kwargs or {}))


def count_host_reads(task: Callable[[], object]) -> int:
    with HostReads() as reads:
        task()
    return reads.count


def measure_scaling(config: Config, device: torch.device, processes: int, repeats: int) -> Report:
    """One process, plain and distributed, and ``processes`` of them, each with a batch of its own in memory.

    All processes share this machine: with more of them than cores or devices there is nothing to gain.
    """
    plain = _step(config, Runtime(device))
    runtime = DistributedRuntime(device, SINGLE_PROCESS)
    distributed = _step(config, runtime)
    reads = count_host_reads(distributed)
    seconds = medians({"plain": plain, "distributed": distributed}, repeats, runtime.synchronize)
    runtime.close()
    seconds |= _side_by_side(config, device.type, processes, repeats)
    batch = config.train.batch_size
    speed = {
        "plain": batch / seconds["plain"],
        "distributed": batch / seconds["distributed"],
        "strangers": processes * batch / seconds["strangers"],
        "together": processes * batch / seconds["together"],
    }
    efficiency = speed["together"] / (processes * speed["distributed"])
    bound = speed["strangers"] / (processes * speed["plain"])
    overhead = seconds["distributed"] / seconds["plain"] - 1
    return Report(
        title=f"train in processes: batch {batch} each, {' x '.join(map(str, config.train.size))}, "
        f"amp {config.train.amp}",
        header=("processes", "ms a step", "samples/s"),
        rows=[
            (name, 1000 * seconds[key], speed[key])
            for key, name in (
                ("plain", "1, as tools/train.py"),
                ("distributed", "1, distributed"),
                ("strangers", f"{processes}, each for itself"),
                ("together", f"{processes}, distributed"),
            )
        ],
        numbers={
            "processes": processes,
            "scaling_efficiency": efficiency,
            "scaling_bound": bound,
            "distributed_overhead": overhead,
            "host_reads_per_step": reads,
            "samples_per_s": speed,
            "step_ms": {key: 1000 * value for key, value in seconds.items()},
            "batch_size": batch,
            "input_size": list(config.train.size),
            "amp": config.train.amp,
            "sync_bn": config.parallel.sync_bn,
        },
        notes=[
            f"scaling efficiency 1 -> {processes}: {share(efficiency, 1)}; processes that share nothing but the "
            f"machine reach {share(bound, 1)}",
            f"overhead of the distributed path with one process: {share(overhead, 1)}",
            f"the host waits for the device {reads} times a step: for the guard's vote and the gradient's norm",
        ],
    )


def _step(config: Config, runtime: Runtime) -> Callable[[], object]:
    """One optimizer step of a fresh network, again and again.

    Raises:
        TrainingError: all of the first steps are dropped.
    """
    torch.manual_seed(0)
    train_step, _ = make_train_step(config, runtime)
    batch = synthetic_batch(config.train.batch_size, config.train.size, runtime.rank, config.model.skeleton)
    batch = batch.to(runtime.device)
    # The first loss scales of fp16 are too large, and a step that is dropped tells nothing.
    if not any(train_step([batch]).loss is not None for _ in range(FIRST_STEPS)):
        raise TrainingError(f"the first {FIRST_STEPS} steps were dropped; benchmark another configuration")
    return lambda: train_step([batch])


def _side_by_side(config: Config, device: str, processes: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step of ``processes`` processes, strangers and together; the slowest one counts."""
    with tempfile.TemporaryDirectory() as folder:
        launch(processes, _member, config, device, repeats, folder, torch.get_num_threads())
        times = [json.loads((Path(folder) / str(rank)).read_text(encoding="utf-8")) for rank in range(processes)]
    return {kind: median(map(max, zip(*(own[kind] for own in times)))) for kind in times[0]}


def _member(rank_info: RankInfo, config: Config, device: str, repeats: int, folder: str, threads: int) -> None:
    torch.set_num_threads(threads)
    runtime = DistributedRuntime(device_of_rank(torch.device(device), rank_info), rank_info)
    steps = {"strangers": _step(config, Runtime(runtime.device)), "together": _step(config, runtime)}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(repeats + 1):
        for kind, step in steps.items():
            runtime.synchronize()
            runtime.any_rank(False)  # all start at once
            started = time.perf_counter()
            step()
            runtime.synchronize()
            times[kind].append(time.perf_counter() - started)
    written = json.dumps({kind: own[1:] for kind, own in times.items()})
    (Path(folder) / str(runtime.rank)).write_text(written, encoding="utf-8")
    runtime.close()
