"""What training in several processes gains, and what the distributed path costs."""

from __future__ import annotations

import json
import os
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
from posenet.benchmark.train import make_update, synthetic_batch
from posenet.distributed import DistributedRuntime, own_device
from posenet.launch import ALONE_AT, Place, find_place, launch
from posenet.runtime import Runtime
from posenet.settings import Config


class HostReads(TorchFunctionMode):
    """Counts how often Python reads a number from a tensor, for which the host must wait for the device."""

    READS = {Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__float__, Tensor.__int__}

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Callable[..., Any], kinds: Iterable[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
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
    runtime = DistributedRuntime(device, Place(0, 1, 0, ALONE_AT))
    distributed = _step(config, runtime)
    reads = count_host_reads(distributed)
    seconds = medians({"plain": plain, "distributed": distributed}, repeats, runtime.synchronize)
    runtime.close()
    seconds["together"] = _together(config, device.type, processes, repeats)
    batch = config.train.batch_size
    speed = {"plain": batch / seconds["plain"], "distributed": batch / seconds["distributed"],
             "together": processes * batch / seconds["together"]}
    efficiency = speed["together"] / (processes * speed["distributed"])
    overhead = seconds["distributed"] / seconds["plain"] - 1
    return Report(
        title=f"train in processes: batch {batch} each, {' x '.join(map(str, config.train.size))}, "
              f"amp {config.train.amp}",
        header=("processes", "ms a step", "samples/s"),
        rows=[(name, 1000 * seconds[key], speed[key]) for key, name in (
            ("plain", "1, as tools/train.py"), ("distributed", "1, distributed"),
            ("together", f"{processes}, distributed"))],
        numbers={"processes": processes, "scaling_efficiency": efficiency, "distributed_overhead": overhead,
                 "host_reads_per_step": reads, "samples_per_s": speed,
                 "step_ms": {key: 1000 * value for key, value in seconds.items()}, "batch_size": batch,
                 "input_size": list(config.train.size), "amp": config.train.amp,
                 "sync_bn": config.parallel.sync_bn},
        notes=[f"scaling efficiency 1 -> {processes}: {share(efficiency, 1)}",
               f"overhead of the distributed path with one process: {share(overhead, 1)}",
               f"the host waits for the device {reads} times a step: for the guard's vote, the gradient's norm, and "
               "with fp16 GradScaler's flag"],
    )


def _step(config: Config, runtime: Runtime) -> Callable[[], object]:
    """One optimizer step of a fresh network, again and again."""
    torch.manual_seed(0)
    update = make_update(config, runtime)[0]
    batch = synthetic_batch(config.train.batch_size, config.train.size, seed=runtime.rank).to(runtime.device)
    return lambda: update([batch])


def _together(config: Config, device: str, processes: int, repeats: int) -> float:
    """Median seconds of a step of ``processes`` processes; the slowest one counts."""
    with tempfile.TemporaryDirectory() as folder:
        launch(processes, _member, config, device, repeats, folder, torch.get_num_threads())
        times = [json.loads((Path(folder) / str(rank)).read_text(encoding="utf-8")) for rank in range(processes)]
    return median(map(max, zip(*times)))


def _member(config: Config, device: str, repeats: int, folder: str, threads: int) -> None:
    torch.set_num_threads(threads)
    place = find_place(os.environ)
    runtime = DistributedRuntime(own_device(torch.device(device), place), place)
    step, times = _step(config, runtime), []
    for _ in range(repeats + 1):
        runtime.synchronize()
        started = time.perf_counter()
        step()
        runtime.synchronize()
        times.append(time.perf_counter() - started)
    (Path(folder) / str(runtime.rank)).write_text(json.dumps(times[1:]), encoding="utf-8")
    runtime.close()
