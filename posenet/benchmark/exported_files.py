"""Size and speed of exported files in the runtimes that are installed, compared with PyTorch in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from posenet.benchmark.family import PEAK_CHANNELS, PEAK_SIDE, convolution_gflop_per_s
from posenet.benchmark.network import count_gflop
from posenet.benchmark.report import Cell, Report, percent
from posenet.benchmark.timing import Task, median_seconds
from posenet.devices.precision import select_amp
from posenet.devices.runtime import Runtime
from posenet.inference.backends.graph import RUNTIMES, Graph, GraphOptions, installed_runtimes, load_graph
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import images_to_input

ROUNDS = 3
"""Each time is the best of this many medians."""
REPEATS = 3
"""Timed runs of every task in a round; tasks are interleaved."""
_CPU = torch.device("cpu")


def measure_exported_files(network: nn.Module, files: Mapping[str, bytes], side: int) -> Report:
    """Measure exported files of a network, one image at a time, on the CPU, all with PyTorch's number of threads.

    Args:
        network: the network in PyTorch, which is measured in its fastest precision without loss of accuracy.
        files: the contents of the files, by the name to show.
        side: height and width of the image in pixels, a multiple of 64.
    """
    amp = select_amp(_CPU, "auto")
    threads = torch.get_num_threads()
    fused = FusedNetwork(network, amp)
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    images = images_to_input(torch.from_numpy(image[None]), channels_last=True)

    @torch.inference_mode()
    def run_network() -> object:
        return fused.heatmaps(images)

    inputs = {"images": image[None], "sizes": np.array([image.shape[:2]], np.int64)}
    baseline = f"PyTorch {'float32' if amp == 'off' else amp}"
    tasks: dict[str, Task] = {baseline: run_network}
    sizes: dict[str, int | None] = {baseline: None}
    runtimes = installed_runtimes()
    for runtime in runtimes:
        for name, content in files.items():
            graph = load_graph(runtime, content, name, GraphOptions("cpu", "auto", threads))
            label = f"{RUNTIMES[runtime].title} {name}"
            tasks[label] = _run_graph(graph, inputs)
            sizes[label] = len(content)
    rounds = [median_seconds(tasks, REPEATS) for _ in range(ROUNDS)]
    # The best median is least affected by other programs on the machine.
    seconds = {label: min(medians[label] for medians in rounds) for label in tasks}
    gflop = count_gflop(run_network)
    peak = convolution_gflop_per_s(Runtime(_CPU), amp)

    rows: list[Sequence[Cell]] = []
    numbers = {}
    for label, elapsed in seconds.items():
        size = sizes[label]
        megabytes = None if size is None else size / 1e6
        ratio = elapsed / seconds[baseline]
        rows.append((label, megabytes, 1000 * elapsed, f"{ratio:.2f}", percent(gflop / elapsed, peak)))
        numbers[label] = {"megabytes": megabytes, "ms": 1000 * elapsed, "ratio": ratio}
    notes = [
        f"peak: a 3 x 3 convolution of {PEAK_CHANNELS} channels on {PEAK_SIDE} x {PEAK_SIDE} cells in "
        f"{baseline.removeprefix('PyTorch ')} reaches {peak:.3g} GFLOP/s in PyTorch",
        "files include the selection of candidates, PyTorch does not",
    ]
    if "openvino" in runtimes and amp == "bf16":
        notes.append("OpenVINO computes the layers that a file has in float32 in bf16")
    return Report(
        title=f"one image of {side} x {side} on {threads} thread{'s' if threads > 1 else ''}",
        header=("", "MB", "ms", f"time / {baseline}", "of peak"),
        rows=rows,
        numbers={"files": numbers, "peak_gflop_per_s": peak, "gflop": gflop},
        notes=notes,
    )


def _run_graph(graph: Graph, inputs: Mapping[str, np.ndarray]) -> Task:
    return lambda: graph.run(inputs)
