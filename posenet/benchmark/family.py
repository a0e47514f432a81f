"""Size and speed of the networks of several experiment files, side by side, in the precisions that predictions use."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenet.benchmark.machine import peak_memory_mib
from posenet.benchmark.network import count_gflop
from posenet.benchmark.report import Cell, Report, percent
from posenet.benchmark.timing import Task, median_seconds, minimum_seconds
from posenet.devices.precision import DTYPES, Amp
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.inference.backends.converted_network import convert_to_onnx
from posenet.inference.backends.graph import RUNTIMES, GraphOptions, installed_runtimes, load_graph
from posenet.inference.calibration import draw_calibration_images
from posenet.inference.letterbox import Letterbox
from posenet.inference.onnx_quantization import check_packages, quantize_all_blocks
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.model.preprocessing import images_to_input
from posenet.settings import Config

PRECISIONS: dict[str, Amp] = {"float32": "off", "bf16": "bf16"}
"""The precisions to measure in PyTorch, by name."""
CALIBRATION_IMAGES = 2
"""Drawn images for 8-bit networks: their speed does not depend on the ranges of their values."""
MISSING = "missing"
"""Stands for the speed of converted and 8-bit networks where they cannot be measured."""

PEAK_CONVOLUTIONS = 10
"""Number of convolutions; the fastest one is the baseline."""
PEAK_CHANNELS = 256
PEAK_SIDE = 96


def measure_family(configs: Mapping[str, Config], runtime: Runtime, repeats: int, side: int) -> Report:
    """Measure the fused copy of each network, which is what a ``Predictor`` runs, on one image.

    The weights are random. In 8 bits, all convolutions are rounded: an export keeps up to a tenth of a network in
    float32, but which blocks these are is known for trained weights only. The fastest installed runtime runs them, and
    the same network without 8 bits for comparison.

    Args:
        configs: experiments by the name to show.
        repeats: timed runs of every network in every precision, interleaved.
        side: height and width of the image.
    """
    letterbox = Letterbox((side, side), (side, side))
    drawings = draw_calibration_images(CALIBRATION_IMAGES, lambda size: letterbox)
    image = images_to_input(torch.from_numpy(drawings[0][None]), channels_last=True).to(runtime.device)
    graph_runtime, runtime_note = _choose_graph_runtime(runtime)
    tasks: dict[str, Task] = {}
    for name, config in configs.items():
        network = PoseNet.from_config(config)
        set_norm_statistics(network, drawings)
        if graph_runtime is not None:
            int8_model = quantize_all_blocks(network, drawings).SerializeToString()
            tasks[f"{name} converted"] = _graph_prediction(convert_to_onnx(network), drawings[0], graph_runtime)
            tasks[f"{name} int8"] = _graph_prediction(int8_model, drawings[0], graph_runtime)
        network.to(runtime.device)
        for precision, amp in PRECISIONS.items():
            tasks[f"{name} {precision}"] = _prediction(FusedNetwork(network, amp), image)
    peaks = {precision: convolution_gflop_per_s(runtime, amp) for precision, amp in PRECISIONS.items()}
    seconds = median_seconds(tasks, repeats, runtime.synchronize)

    rows: list[Sequence[Cell]] = []
    numbers = {}
    for name, config in configs.items():
        parameters, gflop = count_parameters_and_gflop(config, side)
        memory = prediction_memory_mib(config, side)
        row: list[Cell] = [name, f"{parameters / 1e6:.2f}", gflop, memory if memory is None else round(memory)]
        numbers[name] = {"parameters": parameters, "gflop": gflop, "memory_mib": memory}
        for precision, peak in peaks.items():
            elapsed = seconds[f"{name} {precision}"]
            row += [1 / elapsed, percent(gflop / elapsed, peak)]
            numbers[name] |= {
                f"{precision}_images_per_s": 1 / elapsed,
                f"{precision}_share_of_peak": gflop / elapsed / peak,
            }
        for column in ("converted", "int8"):
            speed = None if graph_runtime is None else 1 / seconds[f"{name} {column}"]
            row.append(MISSING if speed is None else speed)
            numbers[name][f"{column}_images_per_s"] = speed
        rows.append(row)
    peak_text = ", ".join(f"{peak:.3g} GFLOP/s in {precision}" for precision, peak in peaks.items())
    return Report(
        title=f"networks for prediction: one image of {side} x {side}, BatchNorm folded, without decoding",
        header=(
            "network",
            "M parameters",
            "GFLOP",
            "MiB",
            "float32 images/s",
            "of peak",
            "bf16 images/s",
            "of peak",
            "converted images/s",
            "int8 images/s",
        ),
        rows=rows,
        numbers={
            "networks": numbers,
            **{f"{precision}_peak_gflop_per_s": peak for precision, peak in peaks.items()},
        },
        notes=[
            f"peak: a 3 x 3 convolution of {PEAK_CHANNELS} channels, {PEAK_SIDE} x {PEAK_SIDE} cells, has {peak_text}",
            "MiB: growth of the peak memory of a process that predicts one image on the CPU in float32",
            runtime_note,
        ],
    )


def _choose_graph_runtime(runtime: Runtime) -> tuple[str | None, str]:
    """The name of the runtime for converted and 8-bit networks, None if there is none; and a note for the report."""
    if runtime.device.type != "cpu":
        return None, "converted, int8: measured on the CPU only; add --device cpu"
    try:
        check_packages()
    except ConfigError as error:
        return None, f"converted, int8: {error}"
    name = installed_runtimes()[0]
    title = RUNTIMES[name].title
    precision = "bf16 where the CPU computes in it, and else float32" if name == "openvino" else "float32"
    return name, (
        f"converted: run by {title}, in {precision}; int8: run by {title}, all convolutions in 8 bits; "
        "the other columns: run by PyTorch"
    )


@torch.no_grad()
def set_norm_statistics(network: PoseNet, images: Sequence[np.ndarray]) -> None:
    """Set the statistics of BatchNorm layers to those of (H, W, 3) uint8 images of equal size.

    Values inside the network then are as large as in a trained one. With the initial statistics, they shrink with every
    layer until 8 bits cannot represent them.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # the statistics are those of the last batch alone
    network.train()
    network.heatmaps(images_to_input(torch.from_numpy(np.stack(images))))
    network.eval()


def convolution_gflop_per_s(runtime: Runtime, amp: Amp) -> float:
    """Measure the speed of a large 3 x 3 convolution, the operation that most of the network consists of.

    The fastest of several convolutions is used, because other programs on the machine must not lower the baseline.
    """
    x = torch.rand(1, PEAK_CHANNELS, PEAK_SIDE, PEAK_SIDE)
    x = x.to(runtime.device, DTYPES[amp], memory_format=torch.channels_last)
    weight = torch.rand(PEAK_CHANNELS, PEAK_CHANNELS, 3, 3)
    weight = weight.to(runtime.device, DTYPES[amp], memory_format=torch.channels_last)
    with torch.inference_mode():
        seconds = minimum_seconds(lambda: F.conv2d(x, weight, padding=1), PEAK_CONVOLUTIONS, runtime.synchronize)
    return 2 * 9 * PEAK_CHANNELS**2 * PEAK_SIDE**2 / seconds / 1e9


def count_parameters_and_gflop(config: Config, side: int) -> tuple[int, float]:
    """The number of parameters, and the operations in GFLOP of the heatmaps of one image; computes nothing."""
    with torch.device("meta"):
        network = PoseNet.from_config(config)
        image = torch.empty(1, 3, side, side)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return parameters, count_gflop(lambda: network.heatmaps(image))


def prediction_memory_mib(config: Config, side: int) -> float | None:
    """Growth of the peak memory of a new process when it builds the network and predicts one image, in MiB.

    None on Windows, which has no such count.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure_memory, config, side).result()


def _measure_memory(config: Config, side: int) -> float | None:
    before = peak_memory_mib()
    _prediction(FusedNetwork(PoseNet.from_config(config)), torch.rand(1, 3, side, side))()
    after = peak_memory_mib()
    return None if before is None or after is None else after - before


def _prediction(network: FusedNetwork, image: Tensor) -> Task:
    def predict() -> Tensor:
        with torch.inference_mode():
            return network.heatmaps(image)

    return predict


def _graph_prediction(model: bytes, image: np.ndarray, runtime: str) -> Task:
    """The prediction of the maps of an image by an ONNX graph."""
    graph = load_graph(runtime, model, "the converted network", GraphOptions("cpu", "auto", torch.get_num_threads()))
    inputs = {"images": images_to_input(torch.from_numpy(image[None])).contiguous().numpy()}
    return lambda: graph.run(inputs)
