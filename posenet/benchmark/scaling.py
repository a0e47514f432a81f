"""Speed-up of training in several processes, and the overhead of DistributedDataParallel."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import torch

from posenet.benchmark.host_waits import HostWaits
from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Task, median_seconds
from posenet.benchmark.train import build_train_step, synthetic_batch
from posenet.devices.cudnn import cudnn_flags
from posenet.devices.distributed import DistributedRuntime, device_of_rank
from posenet.devices.launch import launch
from posenet.devices.precision import select_training_mode
from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.settings import Config

WARM_UP_STEPS = 40
"""Steps that may be skipped before one succeeds: the initial loss scale of fp16 is too large and falls step by step."""


def measure_scaling(config: Config, device: torch.device, processes: int, repeats: int) -> Report:
    """Measure training steps in one process and in ``processes`` processes; each trains on a batch in its memory.

    The variants, by their keys in the JSON file, are one process without ("plain") and with DistributedDataParallel
    ("distributed"), and ``processes`` processes that train one network each ("strangers") or one network together
    ("together"). All processes run on this machine, so the speed rises only up to its number of cores or devices.
    """
    amp = select_training_mode(device, config.train).amp
    waiting_lines = count_host_waits(config, device)
    seconds = _measure_one_process(config, device, repeats)
    seconds |= _measure_processes(config, device.type, processes, repeats)
    batch_size = config.train.batch_size
    height, width = config.train.size
    num_processes = {"plain": 1, "distributed": 1, "strangers": processes, "together": processes}
    speed = {variant: count * batch_size / seconds[variant] for variant, count in num_processes.items()}
    efficiency = speed["together"] / (processes * speed["distributed"])
    bound = speed["strangers"] / (processes * speed["plain"])
    overhead = seconds["distributed"] / seconds["plain"] - 1
    labels = {
        "plain": "1, not distributed",
        "distributed": "1, distributed",
        "strangers": f"{processes}, one network each",
        "together": f"{processes}, distributed",
    }
    return Report(
        title=f"train in processes: batch {batch_size} each, {height} x {width}, amp {amp}",
        header=("processes", "ms per step", "samples/s"),
        rows=[(label, 1000 * seconds[variant], speed[variant]) for variant, label in labels.items()],
        numbers={
            "processes": processes,
            "scaling_efficiency": efficiency,
            "scaling_bound": bound,
            "distributed_overhead": overhead,
            "host_reads_per_step": waiting_lines.total(),
            "samples_per_s": speed,
            "step_ms": {variant: 1000 * value for variant, value in seconds.items()},
            "batch_size": batch_size,
            "input_size": [height, width],
            "amp": amp,
            "sync_bn": config.parallel.sync_bn,
        },
        notes=[
            f"scaling efficiency from 1 to {processes} processes: {percent(efficiency, 1)}; the limit of this machine, "
            f"reached by processes that train one network each, is {percent(bound, 1)}",
            f"overhead of the distributed code in one process: {percent(overhead, 1)}",
            f"the host waits for an accelerator {waiting_lines.total()} times per step"
            + "".join(f"\n  {count} x {line}" for line, count in waiting_lines.items()),
        ],
    )


def count_host_waits(config: Config, device: torch.device) -> Counter[str]:
    """How often an optimizer step makes the host wait, by line of code; on a CPU, how often it would on an accelerator.

    The results of the step are not read; the trainer reads them while the device works on the next step.
    """
    train_step, model = build_train_step(config, Runtime(device))
    model.renderer.cell_lists = model.renderer.whole_maps  # as on an accelerator
    batch = synthetic_batch(config).to(device)
    train_step([batch])  # the first step allocates the optimizer's state
    with HostWaits() as waits:
        train_step([batch])
    return waits.lines


@cudnn_flags(benchmark=True)
def _measure_one_process(config: Config, device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds of a "plain" and a "distributed" step in this process."""
    plain = _make_step(config, Runtime(device))
    runtime = DistributedRuntime(device, SINGLE_PROCESS)
    distributed = _make_step(config, runtime)
    seconds = median_seconds({"plain": plain, "distributed": distributed}, repeats, runtime.synchronize)
    runtime.close()
    return seconds


def _measure_processes(config: Config, device: str, processes: int, repeats: int) -> dict[str, float]:
    """Median seconds of a "strangers" and a "together" step; the slowest process of each step counts."""
    with tempfile.TemporaryDirectory() as folder:
        launch(processes, _measure_rank, config, device, repeats, folder, torch.get_num_threads())
        files = [Path(folder, str(rank)) for rank in range(processes)]
        seconds_of_ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    seconds = {}
    for variant in ("strangers", "together"):
        seconds_of_steps = zip(*(seconds_of_rank[variant] for seconds_of_rank in seconds_of_ranks))
        seconds[variant] = median(max(step) for step in seconds_of_steps)
    return seconds


@cudnn_flags(benchmark=True)
def _measure_rank(rank_info: RankInfo, config: Config, device: str, repeats: int, folder: str, threads: int) -> None:
    """Measure the steps of one process; write the seconds of both variants to a file named for its rank."""
    torch.set_num_threads(threads)
    runtime = DistributedRuntime(device_of_rank(torch.device(device), rank_info), rank_info)
    steps = {"strangers": _make_step(config, Runtime(runtime.device)), "together": _make_step(config, runtime)}
    seconds: dict[str, list[float]] = {variant: [] for variant in steps}
    for round_index in range(repeats + 1):
        for variant, step in steps.items():
            runtime.synchronize()
            runtime.any_rank(False)  # a barrier: all processes start the step together
            started = time.perf_counter()
            step()
            runtime.synchronize()
            if round_index > 0:  # the first step warms up
                seconds[variant].append(time.perf_counter() - started)
    Path(folder, str(runtime.rank)).write_text(json.dumps(seconds), encoding="utf-8")
    runtime.close()


def _make_step(config: Config, runtime: Runtime) -> Task:
    """A function that runs one optimizer step of a new network, after the first step that is not skipped."""
    torch.manual_seed(0)
    train_step, _ = build_train_step(config, runtime)
    batch = synthetic_batch(config, seed=runtime.rank).to(runtime.device)
    for _ in range(WARM_UP_STEPS):
        if train_step([batch]).read().loss is not None:
            return lambda: train_step([batch])
    raise TrainingError(f"the loss guard skipped the first {WARM_UP_STEPS} steps; benchmark another configuration")
