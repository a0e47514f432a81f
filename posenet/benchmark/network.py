"""How fast the network runs, against what the device can multiply."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posenet.benchmark.report import Report, share
from posenet.benchmark.timing import fastest, medians
from posenet.devices.precision import DTYPES, Amp, autocast
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet

PRODUCTS = 20
"""Matrix products of which the fastest gives the baseline."""


def measure_network(
    network: PoseNet, shadow: PoseNet, images: Tensor, runtime: Runtime, amp: Amp, repeats: int, matmul_side: int
) -> Report:
    """The deployment path and the training forward.

    Args:
        network: on the runtime's device.
        shadow: the same network on the meta device, for counting.
        images: (N, 3, H, W) float32 on the runtime's device.
        matmul_side: rows and columns of the matrices whose product gives the baseline.
    """

    def heatmaps() -> Tensor:
        network.eval()
        with torch.inference_mode(), autocast(runtime.device, amp):
            return network.heatmaps(images)

    def forward() -> list[list[Tensor]]:
        network.train()
        with autocast(runtime.device, amp):
            return network(images)

    ghost = images.to("meta")
    gflop = {"heatmaps": count_gflop(lambda: shadow.heatmaps(ghost)), "forward": count_gflop(lambda: shadow(ghost))}
    peak = matmul_gflop_per_s(runtime, amp, matmul_side)
    seconds = medians({"heatmaps": heatmaps, "forward": forward}, repeats, runtime.synchronize)
    speed = {name: gflop[name] / seconds[name] for name in gflop}
    parameters = sum(p.numel() for p in network.parameters())
    batch, _, height, width = images.shape
    names = {"heatmaps": "heatmaps (inference)", "forward": "forward (training)"}
    return Report(
        title=f"network: {parameters / 1e6:.1f} M parameters, batch {batch}, {height} x {width}, amp {amp}",
        header=("path", "ms", "images/s", "GFLOP", "GFLOP/s", "of a matmul's"),
        rows=[
            (names[n], 1000 * seconds[n], batch / seconds[n], gflop[n], speed[n], share(speed[n], peak)) for n in gflop
        ],
        numbers={
            "parameters": parameters,
            "batch_size": batch,
            "input_size": [height, width],
            "amp": amp,
            "matmul_gflop_per_s": peak,
        }
        | {
            f"{n}_{unit}": value
            for n in gflop
            for unit, value in (
                ("ms", 1000 * seconds[n]),
                ("images_per_s", batch / seconds[n]),
                ("gflop", gflop[n]),
                ("gflop_per_s", speed[n]),
                ("share_of_peak", speed[n] / peak),
            )
        },
        notes=[
            f"baseline: {matmul_side} x {matmul_side} matrices multiply at {peak:.3g} GFLOP/s; "
            "one multiplication and addition count as 2 FLOP"
        ],
    )


def count_gflop(task: Callable[[], object]) -> float:
    """Billions of floating-point operations that a task on the meta device would take."""
    with FlopCounterMode(display=False) as counter:
        task()
    return counter.get_total_flops() / 1e9


def matmul_gflop_per_s(runtime: Runtime, amp: Amp, side: int) -> float:
    """How fast two square matrices multiply in the network's precision.

    The best of several products counts, not the median: a baseline should not be slowed by what runs beside it. On CPUs
    it is no limit: convolutions come from another library, which may well be faster.
    """
    a, b = torch.rand(2, side, side, device=runtime.device).to(DTYPES[amp])
    before = torch.get_float32_matmul_precision()
    # On CUDA, float32 convolutions may round to TF32 unless told not to; matrix products do not unless told to.
    if runtime.device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        torch.set_float32_matmul_precision("high")
    try:
        seconds = fastest(lambda: a @ b, PRODUCTS, runtime.synchronize)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * side**3 / seconds / 1e9
