"""The network alone: images per second in each precision, as a share of the speed of a matrix product."""

import argparse

import torch

from benchmarks.measuring import Table, count_flop, matmul_flop_per_s, measure
from posenet.devices.precision import DTYPES, Amp
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument("--amp", nargs="+", choices=DTYPES, default=["off", "bf16"], help="precisions to measure")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time the prediction of a batch by the fused copy of the network that prediction uses."""
    height, width = config.train.size
    batch_size = config.train.batch_size
    network = PoseNet.from_config(config).eval()
    images = torch.rand(batch_size, 3, height, width)
    flop = count_flop(lambda: FusedNetwork(network).heatmaps(images)) / batch_size
    table = Table(
        title=f"network: {config.model.stacks} stacks of width {config.model.width}, batches of {batch_size} at "
        f"{height} x {width}",
        header=("precision", "ms/image", "images/s", "GFLOP/s", "of a matrix product"),
        numbers={"gflop_per_image": flop / 1e9},
    )
    for amp in args.amp:
        seconds, limit = _time(network, images, amp, device, args.repeats)
        speed = batch_size / seconds
        table.rows.append((amp, 1000 / speed, speed, flop * speed / 1e9, f"{flop * speed / limit:.0%}"))
        table.numbers |= {f"{amp}_images_per_s": speed, f"{amp}_share_of_matmul": flop * speed / limit}
    return [table]


def _time(network: PoseNet, images: torch.Tensor, amp: Amp, device: torch.device, repeats: int) -> tuple[float, float]:
    """Seconds of a batch, and operations per second of a matrix product in the same precision."""
    fused = FusedNetwork(network, amp).to(device)
    inputs = images.to(device, memory_format=torch.channels_last)
    with torch.inference_mode():
        seconds = measure({"forward": lambda: fused.heatmaps(inputs)}, repeats)["forward"]
        return seconds, matmul_flop_per_s(device, DTYPES[amp], repeats)
