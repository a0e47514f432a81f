"""Predicting: images per second from files to people, of one network or of several in turn."""

import argparse
import copy
import functools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import Table, measure
from posenet.cli.options import positive_int
from posenet.devices.device import cudnn_flags
from posenet.images import find_images
from posenet.inference.averaging import InputBatch
from posenet.inference.media.frames import Frame
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.settings import MAP_STRIDE, Config


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
    parser.add_argument("--flip", action="store_true", help="average with the mirrored images")
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0], metavar="S", help="inference scales")
    parser.add_argument("--batch-size", type=positive_int, default=4, metavar="N", help="4 by default")
    parser.add_argument("--limit", type=positive_int, default=64, metavar="N", help="only N images; 64 by default")


@cudnn_flags(benchmark=False)  # as posenet predict: the images have many shapes
def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time all networks on the same files, in the batches that the stream makes."""
    paths = find_images(args.images)[: args.limit]
    table = Table(
        f"predict: {len(paths)} image files",
        (
            "network", "images/s", "network alone, images/s", "share", "other processor time, ms/image",
            "images per batch", "people",
        ),
        notes=[
            "images/s: files are read, resized, run through the network and decoded, as posenet predict does",
            "share: of the speed of the network alone, on the same batches",
            "other processor time: all but the network and the decoder",
        ],
    )  # fmt: skip
    tasks = {}
    counts = {}
    for path in args.checkpoint:
        predictor = Predictor(
            path,
            device=str(device),
            amp=args.amp,
            backend=args.backend,
            flip=args.flip,
            scales=args.scales,
            batch_size=args.batch_size,
        )
        name = Path(path).name if f"{Path(path).name}: stream" not in tasks else str(path)
        batches = record_batches(predictor, paths)
        tasks[f"{name}: stream"] = partial(count_people, predictor, paths)
        tasks[f"{name}: network"] = partial(run_networks, predictor, batches)
        calls = sum(len(batch.inputs) for batch in batches) * (2 if args.flip else 1)
        counts[name] = (
            milliseconds_without_network(predictor, paths, args.repeats),
            len(paths) * len(args.scales) * (2 if args.flip else 1) / calls,
            count_people(predictor, paths),
        )
    rates = {name: len(paths) / seconds for name, seconds in measure(tasks, args.repeats).items()}
    for name, (other_time, images_per_batch, people) in counts.items():
        streamed, alone = rates[f"{name}: stream"], rates[f"{name}: network"]
        table.rows.append((name, streamed, alone, f"{streamed / alone:.2f}", other_time, images_per_batch, people))
        table.numbers[name] = {
            "images_per_s": streamed,
            "network_images_per_s": alone,
            "other_processor_ms_per_image": other_time,
            "images_per_batch": images_per_batch,
            "people": people,
        }
    table.numbers["images"] = len(paths)
    return [table]


def count_people(predictor: Predictor, paths: list[Path]) -> int:
    """The number of people in all images."""
    return sum(map(len, predictor.stream(paths)))


def record_batches(predictor: Predictor, paths: list[Path]) -> list[InputBatch]:
    """The batches that the stream makes of the images."""
    batches: list[InputBatch] = []

    class Recorder(Predictor):
        def start_network(self, batch: InputBatch) -> Callable[[], list[np.ndarray]]:
            batches.append(batch)
            return super().start_network(batch)

    recorder = copy.copy(predictor)
    recorder.__class__ = Recorder
    count_people(recorder, paths)
    return batches


def run_networks(predictor: Predictor, batches: list[InputBatch]) -> None:
    """Run the network alone, with all scales and flips."""
    for batch in batches:
        for images in batch.inputs:
            for _ in range(2 if predictor.settings.flip else 1):
                predictor.network(images)


def milliseconds_without_network(predictor: Predictor, paths: list[Path], repeats: int) -> float:
    """The processor time of an image without the network and the decoder; the least of all repeats."""
    num_channels = predictor.skeleton.num_channels

    @functools.cache
    def maps_of(count: int, height: int, width: int) -> np.ndarray:
        return np.full((count, num_channels, height // MAP_STRIDE, width // MAP_STRIDE), 1e-3, np.float32)

    class Idle(Predictor):
        def decode_batch(self, maps_of_images: Sequence[np.ndarray], frames: Sequence[Frame]) -> list[Result]:
            return [Result(frame, [], self.skeleton) for frame in frames]

    idle = copy.copy(predictor)
    idle.__class__ = Idle
    idle.network = lambda images: maps_of(*images.shape[:3])
    seconds = []
    for _ in range(repeats + 1):
        start = time.process_time()
        count_people(idle, paths)
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds) / len(paths)
