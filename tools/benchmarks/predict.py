"""Predicting images: milliseconds from an image in memory to its people, of one network or of several in turn."""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path

import torch

from benchmarks.measuring import Table, measure
from posenet.cli.options import positive_int
from posenet.images import find_images, read_image
from posenet.inference.averaging import InputBatch
from posenet.inference.predictor import Predictor
from posenet.settings import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="images and folders of images")
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        required=True,
        metavar="FILE",
        help="checkpoints and exported files; the others are compared with the first",
    )
    parser.add_argument("--backend", default="auto", metavar="B", help="auto (default), torch, openvino, onnxruntime")
    parser.add_argument("--amp", default="auto", metavar="P", help="precision: auto (the default), off, bf16, fp16")
    parser.add_argument("--limit", type=positive_int, default=8, metavar="N", help="only N images; 8 by default")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time all networks on the same images, each image alone."""
    images = [read_image(path) for path in find_images(args.images)[: args.limit]]
    table = Table(
        f"predict: {len(images)} images",
        ("network", "ms/image", "images/s", "network alone, ms/image", "of the first network", "people"),
        notes=["each image is resized, run through the network and decoded; files are read before"],
    )
    tasks = {}
    people: Counter[str] = Counter()
    for path in args.checkpoint:
        predictor = Predictor.from_checkpoint(path, device=str(device), amp=args.amp, backend=args.backend)
        inputs = [predictor.prepare_inputs([image]) for image in images]
        name = Path(path).name
        if f"{name}: whole" in tasks:
            name = str(path)
        tasks[f"{name}: whole"] = partial(predict_all, predictor, images)
        tasks[f"{name}: network"] = partial(run_networks, predictor, inputs)
        people[name] = sum(map(len, predict_all(predictor, images)))
    seconds = {name: value / len(images) for name, value in measure(tasks, args.repeats).items()}
    first = seconds[next(iter(tasks)).removesuffix(": whole") + ": network"]
    for name, count in people.items():
        whole = seconds[f"{name}: whole"]
        network = seconds[f"{name}: network"]
        table.rows.append((name, 1000 * whole, 1 / whole, 1000 * network, f"{network / first:.2f}", count))
        table.numbers[name] = {"ms_per_image": 1000 * whole, "network_ms_per_image": 1000 * network, "people": count}
    table.numbers["images"] = len(images)
    return [table]


def predict_all(predictor: Predictor, images: list[object]) -> list[list[object]]:
    """The people of each image."""
    return [predictor(image) for image in images]


def run_networks(predictor: Predictor, inputs: list[InputBatch]) -> None:
    """Run the network alone, with all scales and flips."""
    for batch in inputs:
        predictor.run_network(batch)
