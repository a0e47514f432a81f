"""Measure the speed of one part: data, store, targets, network, train, decode or predict.

Each benchmark runs one process on one thread unless told otherwise, warms up, reports medians, and compares them with
a named baseline or a physical limit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import torch

from posenet.benchmark.data import measure_data
from posenet.benchmark.decode import PerfectNetwork, measure_decode
from posenet.benchmark.synthetic_input import drawn_images, drawn_store
from posenet.benchmark.machine import describe, in_words
from posenet.benchmark.network import measure_network
from posenet.benchmark.predict import measure_predict
from posenet.benchmark.report import Report
from posenet.benchmark.scaling import measure_scaling
from posenet.benchmark.store import first_images, measure_store
from posenet.benchmark.targets import measure_targets
from posenet.benchmark.train import make_update, measure_step, synthetic_batch
from posenet.benchmark.data_wait import measure_wait, with_wait
from posenet.checkpoints.weights import load_model
from posenet.cli.options import add_config_options, natural, positive
from posenet.data.dataset import PoseDataset
from posenet.data.store.reader import Store
from posenet.data.targets import TargetRenderer
from posenet.devices.device import select_device
from posenet.devices.precision import select_amp
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, DataError
from posenet.files import write_atomically
from posenet.images.image_files import find_images
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import Config, load_config
from posenet.training.freezing import freeze

FLAG_KEYS = {
    "device": "train.device",
    "amp": "train.amp",
    "input_size": "train.input_size",
    "batch_size": "train.batch_size",
    "height": "inference.height",
}
"""The configuration key that a flag sets."""

QUICK_REPEATS = 2
QUICK_SAMPLES = 4
DRAWN = 24
"""Images drawn where none are given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="benchmark", required=True, metavar="benchmark")
    for name, item in BENCHMARKS.items():
        kind = kinds.add_parser(name, help=item.help, description=item.help, formatter_class=parser.formatter_class)
        item.add_flags(kind)
        kind.add_argument(
            "--repeats", type=positive, default=item.repeats, metavar="N", help="timed runs, of which the median counts"
        )
        kind.add_argument("--threads", type=positive, default=1, metavar="N", help="CPU threads of PyTorch")
        kind.add_argument(
            "--quick",
            action=argparse.BooleanOptionalAction,
            default=False,
            help="few runs of little input: shows that it works, measures nothing",
        )
        kind.add_argument("--json", metavar="FILE", help="write the numbers here; an existing file is replaced")
        add_config_options(kind)


def run(args: argparse.Namespace) -> None:
    """Run one benchmark and print its table."""
    if args.json:
        _check_output(Path(args.json), args)
    if args.quick:
        args.repeats = min(args.repeats, QUICK_REPEATS)
    # OpenCV's own threads would measure another machine than --threads says.
    cv2.setNumThreads(0)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = load_config(args.config, args.overrides + _flag_overrides(args))
    runtime = Runtime(select_device(config.train.device) if "device" in args else torch.device("cpu"))
    machine = describe(runtime.device)
    print(in_words(machine) + "\n")
    report = BENCHMARKS[args.benchmark].measure(args, config, runtime)
    print(report.text())
    if args.json:
        numbers = {
            "benchmark": args.benchmark,
            "machine": machine,
            "repeats": args.repeats,
            "quick": args.quick,
            **report.numbers,
        }
        write_atomically(args.json, json.dumps(numbers, indent=2, allow_nan=False).encode())


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--h5", metavar="FILE", help="store to read; unset, a small synthetic one is built")
    parser.add_argument("--samples", type=positive, default=64, metavar="N", help="different samples to make")
    parser.add_argument(
        "--workers", type=natural, default=0, metavar="N", help="also measure a loader with so many processes"
    )
    _add_input_options(parser, batch_size=None)
    _add_device_options(parser, amp=False)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--h5", type=Path, metavar="FILE", help="store to open and read; unset, the one that is built")
    parser.add_argument("--records", type=positive, default=1000, metavar="N", help="images to read in each order")
    parser.add_argument("--images", type=Path, metavar="DIR", help="images to build from; unset, a few are drawn")
    parser.add_argument("--annotations", type=Path, metavar="JSON", help="COCO keypoint file of these images")
    parser.add_argument("--limit", type=positive, default=1000, metavar="N", help="build from the first N images")


def _add_targets(parser: argparse.ArgumentParser) -> None:
    _add_input_options(parser, batch_size=1)
    _add_device_options(parser, amp=False)


def _add_network(parser: argparse.ArgumentParser) -> None:
    _add_input_options(parser, batch_size=1)
    _add_device_options(parser)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="measure what N processes gain instead, and what the distributed path costs one",
    )
    parser.add_argument(
        "--h5",
        metavar="FILE",
        help="also train from this store, by data.workers processes, and tell how long the steps wait for data",
    )
    _add_input_options(parser, batch_size=None)
    _add_device_options(parser)


def _add_decode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--annotations",
        metavar="JSON",
        help="COCO keypoint file, whose images are not needed; unset, a few are drawn",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N images")
    parser.add_argument("--height", type=int, metavar="N", help="height of the images (inference.height)")
    parser.add_argument(
        "--degrade",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="spoil the maps as an imperfect network would",
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="what --degrade does is drawn from this")


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="images, folders, or quoted glob patterns; without any a few are drawn",
    )
    parser.add_argument(
        "--checkpoint",
        "--weights",
        metavar="FILE",
        help="checkpoint of a run, or a published one; unset, the configured network, untrained",
    )
    parser.add_argument("--height", type=int, metavar="N", help="resize images to this height (inference.height)")
    parser.add_argument(
        "--amp",
        choices=["auto", "off", "bf16", "fp16"],
        default="auto",
        dest="precision",
        help="precision of the network; auto is the fastest that is as accurate on the device",
    )
    parser.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="time the network as it was trained, too: in float32, nothing folded",
    )
    _add_device_options(parser, amp=False)


def _add_input_options(parser: argparse.ArgumentParser, batch_size: int | None) -> None:
    parser.add_argument("--input-size", type=int, metavar="N", help="side of the network's input (train.input_size)")
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, metavar="N", help="samples in a batch (train.batch_size)"
    )


def _add_device_options(parser: argparse.ArgumentParser, amp: bool = True) -> None:
    parser.add_argument("--device", metavar="D", help="auto, cpu, cuda, cuda:1, mps ... (train.device)")
    if amp:
        parser.add_argument("--amp", choices=["off", "bf16", "fp16"], help="precision of the network (train.amp)")


def _data(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        path = args.h5 or drawn_store(Path(folder), _drawn(args))
        with Store(path, skeleton=None) as store:
            if not len(store):
                raise DataError(f"{path} holds no samples; build it from images with people")
            dataset = PoseDataset(store, config.train.size, "person", config.augment, config.train.seed)
            samples = min(args.samples, QUICK_SAMPLES) if args.quick else args.samples
            return measure_data(dataset, runtime, samples, config.train.batch_size, args.workers, args.repeats)


def _store(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    if (args.images is None) != (args.annotations is None):
        raise ConfigError("give both --images and --annotations, or neither")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.images:
            limit = min(args.limit, DRAWN) if args.quick else args.limit
            pictures = args.images, first_images(args.annotations, limit, folder / "first.json")
        else:
            pictures = drawn_images(folder, _drawn(args))
        return measure_store(args.h5, *pictures, folder, config.model.skeleton, args.records, args.repeats)


def _targets(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    renderer = TargetRenderer.from_config(config).to(runtime.device)
    return measure_targets(renderer, runtime, config.train.size, config.train.batch_size, args.repeats)


def _network(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    network, shadow = _networks(config, runtime)
    images = torch.rand(config.train.batch_size, 3, *config.train.size).to(
        runtime.device, memory_format=_memory_format(config)
    )
    return measure_network(network, shadow, images, runtime, config.train.amp, args.repeats, _side(args, runtime))


def _train(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    if args.processes:
        return measure_scaling(config, runtime.device, args.processes, args.repeats)
    network, shadow = _networks(config, runtime)
    freeze(shadow, config.train.freeze)
    train_step, model = make_train_step(config, runtime, network)
    batch = synthetic_batch(config.train.batch_size, config.train.size, skeleton=config.model.skeleton)
    batch = batch.to(runtime.device)
    report = measure_step(train_step, model, shadow, batch, args.repeats, _side(args, runtime))
    if not args.h5:
        return report
    with Store(args.h5, config.model.skeleton) as store:
        dataset = PoseDataset(store, config.train.size, config.data.framing, config.augment, config.train.seed)
        return with_wait(
            report, measure_wait(train_step, dataset, config.train.batch_size, config.data.workers, args.repeats)
        )


def _decode(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    network = PerfectNetwork()
    predictor = Predictor.from_config(network, config, device=runtime.device, scales=(1.0,), flip=False)
    limit = min(args.limit or QUICK_SAMPLES, QUICK_SAMPLES) if args.quick else args.limit
    with tempfile.TemporaryDirectory() as folder:
        path = args.annotations or drawn_images(Path(folder), _drawn(args))[1]
        return measure_decode(
            path,
            TargetRenderer.from_config(config),
            predictor,
            network,
            limit,
            args.repeats,
            args.seed if args.degrade else None,
        )


def _predict(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    if args.checkpoint:
        network, config = load_model(args.checkpoint, config if args.config else None)
        config = load_config(None, args.overrides + _flag_overrides(args), base=config)
    else:
        network = PoseNet.from_config(config)

    def make_predictor(watched: torch.nn.Module) -> Predictor:
        return Predictor.from_config(watched, config, device=runtime.device)

    amp = select_amp(runtime.device, args.precision)
    with tempfile.TemporaryDirectory() as folder:
        paths = find_images(args.inputs or [drawn_images(Path(folder), _drawn(args))[0]])
        return measure_predict(network, amp, make_predictor, paths, runtime, args.repeats, args.compare)


def _networks(config: Config, runtime: Runtime) -> tuple[PoseNet, PoseNet]:
    """The configured network on the device, and one without numbers for counting."""
    with torch.device("meta"):
        shadow = PoseNet.from_config(config)
    return PoseNet.from_config(config).to(runtime.device, memory_format=_memory_format(config)), shadow


def _memory_format(config: Config) -> torch.memory_format:
    return torch.channels_last if config.train.channels_last else torch.contiguous_format


def _drawn(args: argparse.Namespace) -> int:
    return QUICK_SAMPLES if args.quick else DRAWN


def _side(args: argparse.Namespace, runtime: Runtime) -> int:
    """Matrices large enough to keep the device busy."""
    if args.quick:
        return 128
    return 1024 if runtime.device.type == "cpu" else 8192


def _flag_overrides(args: argparse.Namespace) -> list[str]:
    """Flags as ``key=value`` pairs; JSON's strings and numbers are TOML too."""
    return [
        f"{key}={json.dumps(getattr(args, flag))}"
        for flag, key in FLAG_KEYS.items()
        if getattr(args, flag, None) is not None
    ]


def _check_output(path: Path, args: argparse.Namespace) -> None:
    """Refuse, before anything is measured, an output that cannot be written or is an input."""
    if not path.parent.is_dir():
        raise ConfigError(f"--json {path}: folder {path.parent} does not exist; create it")
    if path.is_dir():
        raise ConfigError(f"--json {path} is a folder; name a file")
    inputs = [getattr(args, name, None) for name in ("h5", "annotations", "checkpoint", "config")]
    inputs += getattr(args, "inputs", [])
    if path.resolve() in {Path(given).resolve() for given in inputs if given}:
        raise ConfigError(f"--json {path} would replace an input; choose another name")


class Benchmark(NamedTuple):
    """One benchmark: what it does, its flags, its help text and its timed runs."""

    measure: Callable[[argparse.Namespace, Config, Runtime], Report]
    add_flags: Callable[[argparse.ArgumentParser], None]
    help: str
    repeats: int


BENCHMARKS = {
    "data": Benchmark(_data, _add_data, "training samples per second, on one core and from a loader's workers", 5),
    "store": Benchmark(_store, _add_store, "opening, reading and building a store, beside plain reads and work", 5),
    "targets": Benchmark(_targets, _add_targets, "target maps per second, by number of people", 20),
    "network": Benchmark(_network, _add_network, "forward time, size and share of the device's arithmetic", 5),
    "train": Benchmark(_train, _add_train, "one optimizer step on a batch in memory: forward, backward, update", 3),
    "decode": Benchmark(_decode, _add_decode, "images per second, AP and errors of the decoder on known people", 3),
    "predict": Benchmark(_predict, _add_predict, "milliseconds of every stage from image to drawing", 3),
}
