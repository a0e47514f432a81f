"""Speed of the network's forward pass, compared with a matrix product on the same device."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Task, median_seconds, minimum_seconds
from posenet.devices.precision import DTYPES, Amp, autocast, select_training_mode
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.settings import Config

MATRIX_PRODUCTS = 20
"""Number of matrix products; the fastest one is the baseline."""

PATHS = {"heatmaps": "heatmaps (inference)", "forward": "forward (training)"}
"""The two ways to run the network, by the name of ``PoseNet``'s method."""


def measure_network(config: Config, runtime: Runtime, repeats: int, matmul_side: int) -> Report:
    """Measure ``PoseNet.heatmaps`` in eval mode and ``PoseNet.forward`` in training mode on random images.

    The baseline is a product of matrices of ``matmul_side`` rows and columns.
    """
    amp, channels_last = select_training_mode(runtime.device, config.train)
    batch_size = config.train.batch_size
    height, width = config.train.size
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network = PoseNet.from_config(config)
    network.to(device=runtime.device, memory_format=layout)  # type: ignore[call-overload]  # PyTorch's types lack it
    images = torch.rand(batch_size, 3, height, width).to(runtime.device, memory_format=layout)

    def heatmaps() -> Tensor:
        network.eval()
        with torch.inference_mode(), autocast(runtime.device, amp):
            return network.heatmaps(images)

    def forward() -> list[list[Tensor]]:
        network.train()
        with autocast(runtime.device, amp):
            return cast(list[list[Tensor]], network(images))

    gflop = count_forward_gflop(config)
    matmul_speed = matmul_gflop_per_s(runtime, amp, matmul_side)
    seconds = median_seconds({"heatmaps": heatmaps, "forward": forward}, repeats, runtime.synchronize)

    parameters = sum(parameter.numel() for parameter in network.parameters())
    numbers = {
        "parameters": parameters,
        "batch_size": batch_size,
        "input_size": [height, width],
        "amp": amp,
        "matmul_gflop_per_s": matmul_speed,
    }
    rows = []
    for path, label in PATHS.items():
        milliseconds = 1000 * seconds[path]
        images_per_s = batch_size / seconds[path]
        speed = gflop[path] / seconds[path]
        rows.append((label, milliseconds, images_per_s, gflop[path], speed, percent(speed, matmul_speed)))
        numbers |= {
            f"{path}_ms": milliseconds,
            f"{path}_images_per_s": images_per_s,
            f"{path}_gflop": gflop[path],
            f"{path}_gflop_per_s": speed,
            f"{path}_share_of_peak": speed / matmul_speed,
        }
    return Report(
        title=f"network: {parameters / 1e6:.1f} M parameters, batch {batch_size}, {height} x {width}, amp {amp}",
        header=("path", "ms", "images/s", "GFLOP", "GFLOP/s", "of a matrix product"),
        rows=rows,
        numbers=numbers,
        notes=[
            f"baseline: the product of two {matmul_side} x {matmul_side} matrices reaches {matmul_speed:.3g} GFLOP/s; "
            "one multiplication and one addition count as 2 FLOP"
        ],
    )


def count_forward_gflop(config: Config) -> dict[str, float]:
    """Count the operations of both paths, in GFLOP."""
    with torch.device("meta"):
        network = PoseNet.from_config(config)
        images = torch.empty(config.train.batch_size, 3, *config.train.size)
    return {"heatmaps": count_gflop(lambda: network.heatmaps(images)), "forward": count_gflop(lambda: network(images))}


def count_gflop(task: Task) -> float:
    """Count the floating-point operations of a task, in GFLOP; on the meta device nothing is computed."""
    with FlopCounterMode(display=False) as counter:
        task()
    return float(counter.get_total_flops()) / 1e9


def matmul_gflop_per_s(runtime: Runtime, amp: Amp, side: int) -> float:
    """Measure the speed of a product of two square matrices in the network's precision.

    The fastest of several products is used, because other programs on the machine must not lower the baseline. It is
    not a limit on CPUs: convolutions use another library there, which can be faster.
    """
    a, b = torch.rand(2, side, side, device=runtime.device).to(DTYPES[amp])
    previous = torch.get_float32_matmul_precision()
    # By default, CUDA rounds float32 to TF32 in convolutions but not in matrix products. The baseline must do the same
    # as the network's convolutions.
    if runtime.device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        torch.set_float32_matmul_precision("high")
    try:
        seconds = minimum_seconds(lambda: a @ b, MATRIX_PRODUCTS, runtime.synchronize)
    finally:
        torch.set_float32_matmul_precision(previous)
    return 2 * side**3 / seconds / 1e9
