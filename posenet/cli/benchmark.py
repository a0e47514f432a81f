"""Measure one part: targets, network, train, gpu, decode, predict, track or diagnose.

Each benchmark runs in one process on one thread unless flags change that, warms up, reports medians, and compares them
with a named baseline or a physical limit. ``BENCHMARKS`` lists all benchmarks with their flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import cv2
import torch
from torch import nn

from posenet.benchmark.data_wait import add_data_wait, measure_data_wait
from posenet.benchmark.decode import measure_decode
from posenet.benchmark.diagnose import measure_diagnose
from posenet.benchmark.family import measure_family
from posenet.benchmark.gpu import Effort, measure_gpu
from posenet.benchmark.machine import Machine, describe_machine
from posenet.benchmark.network import measure_network
from posenet.benchmark.predict import measure_predict
from posenet.benchmark.report import Report
from posenet.benchmark.scaling import measure_scaling
from posenet.benchmark.synthetic_input import build_synthetic_store, write_synthetic_images
from posenet.benchmark.targets import measure_targets
from posenet.benchmark.track import measure_track
from posenet.benchmark.train import build_train_step, measure_step
from posenet.checkpoints.weights import load_model
from posenet.cli.options import (
    SWITCH,
    add_config_options,
    message_stream,
    non_negative_int,
    positive_int,
    setting_help,
)
from posenet.cli.predictor_options import BACKEND_HELP, CHECKPOINT_OR_EXPORTED_HELP
from posenet.data.dataset import PoseDataset
from posenet.data.store import Store
from posenet.data.targets import TargetRenderer
from posenet.devices.cudnn import cudnn_flags
from posenet.devices.device import select_device
from posenet.devices.precision import select_amp
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, DataError
from posenet.files import is_standard_output, write_atomically
from posenet.images import find_images
from posenet.inference.backends.backend import Backend
from posenet.inference.backends.loading import (
    BACKENDS,
    BackendOptions,
    is_exported_file,
    load_backend,
    make_backend,
)
from posenet.model.posenet import PoseNet
from posenet.settings import Config, load_config

_log = logging.getLogger(__name__)

SYNTHETIC_IMAGES = 24
"""Number of synthetic images if there is no other input."""
QUICK_SYNTHETIC_IMAGES = 4
"""Number of synthetic images with --quick."""
GPU_STEPS = 10
"""Training steps in a timed round of the benchmark gpu; 1 with --quick."""
QUICK_REPEATS = 2
"""Largest number of timed runs with --quick."""

FAMILY = ("config/simplepose_tiny.toml", "config/simplepose_small.toml", "config/simplepose_384.toml")
"""Experiment files of the networks that network --all compares, from the smallest to the published one."""
FAMILY_INPUT_SIZE = 384
"""Side of the image that network --all predicts."""

SETTINGS_OF_FLAGS = {
    "device": "train.device",
    "amp": "train.amp",
    "input_size": "train.input_size",
    "batch_size": "train.batch_size",
    "height": "inference.height",
}
"""Flags that override a setting of the configuration."""


class Flag:
    """A command-line flag: the arguments of ``ArgumentParser.add_argument``."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names = names
        self.options = options


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """An entry of ``BENCHMARKS``."""

    help: str
    function: Callable[[argparse.Namespace, Config, Runtime], Report | Iterator[Report]]
    """Returns the report, or yields it after every measurement if they take long."""
    repeats: int
    """Default of --repeats."""
    flags: Sequence[Flag] = ()
    """The flags besides ``COMMON_FLAGS``."""
    quick_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Largest values of flags with --quick."""
    needs_accelerator: bool = False
    """Whether it runs on a CPU only if --device names it."""


def benchmark_targets(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure rendering target maps."""
    renderer = TargetRenderer.from_config(config).to(runtime.device)
    return measure_targets(renderer, runtime, config.train.size, config.train.batch_size, args.repeats)


def benchmark_network(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure the configured network, or with --all those of the family."""
    if args.all:
        configs = {path.stem: load_config(path, args.overrides) for path in map(Path, FAMILY)}
        return measure_family(configs, runtime, args.repeats, args.input_size or FAMILY_INPUT_SIZE)
    return measure_network(config, runtime, args.repeats, _matmul_side(args, runtime))


@cudnn_flags(benchmark=True)
def benchmark_train(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure a training step, with --h5 also its wait for data; with --processes, several processes."""
    if args.processes:
        return measure_scaling(config, runtime.device, args.processes, args.repeats)
    train_step, model = build_train_step(config, runtime)
    report = measure_step(config, train_step, model, args.repeats, _matmul_side(args, runtime))
    if not args.h5:
        return report
    with Store(args.h5, config.model.skeleton) as store:
        dataset = PoseDataset(store, config.train.size, config.data.framing, config.augment, config.train.seed)
        wait = measure_data_wait(train_step, dataset, config.train.batch_size, config.data.workers, args.repeats)
    return add_data_wait(report, wait)


def benchmark_gpu(args: argparse.Namespace, config: Config, runtime: Runtime) -> Iterator[Report]:
    """Measure training and prediction on an accelerator."""

    def predict() -> Report:
        with tempfile.TemporaryDirectory() as folder:
            images, _ = write_synthetic_images(Path(folder), _synthetic_images(args))
            options = BackendOptions(None, str(runtime.device), "auto", args.threads)
            network = PoseNet.from_config(config)
            backend = make_backend(network, config.inference, config.model.skeleton, options)
            amp = select_amp(runtime.device, "auto")
            paths = find_images([images])
            return measure_predict(backend, backend, paths, runtime, args.repeats, name="default", amp=amp)

    effort = Effort(
        batch_sizes=args.batch_sizes,
        compiled_batch_sizes=args.compile_batch_sizes,
        repeats=args.repeats,
        steps=1 if args.quick else GPU_STEPS,
        matmul_side=_matmul_side(args, runtime),
    )
    largest_batch = max([*args.batch_sizes, *(args.compile_batch_sizes or [])])
    with tempfile.TemporaryDirectory() as name:
        path = args.h5 or build_synthetic_store(Path(name), max(_synthetic_images(args), largest_batch))
        with Store(path, config.model.skeleton) as store:
            dataset = PoseDataset(store, config.train.size, "person", config.augment, config.train.seed)
            if len(dataset) < largest_batch:
                raise DataError(f"{path} has {len(dataset)} samples, too few for a batch of {largest_batch}")
            yield from measure_gpu(config, runtime, dataset, config.data.workers, effort, predict)


def benchmark_decode(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure decoding maps that are rendered from --annotations, or from synthetic annotations."""
    renderer = TargetRenderer.from_config(config)
    settings = dataclasses.replace(config.inference, scales=(1.0,), flip=False)
    seed = args.seed if args.degrade else None
    with tempfile.TemporaryDirectory() as folder:
        annotations = args.annotations
        if not annotations:
            _, annotations = write_synthetic_images(Path(folder), _synthetic_images(args))
        return measure_decode(annotations, renderer, settings, args.limit, args.repeats, seed)


def benchmark_predict(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure prediction on the inputs, or on synthetic images."""
    options = BackendOptions(args.backend, str(runtime.device), args.precision, args.threads)
    network: nn.Module | None = None
    if args.checkpoint and is_exported_file(args.checkpoint):
        if args.compare or args.config or args.overrides:
            raise ConfigError(f"{args.checkpoint} is an exported file; leave out --compare, --config and --set")
        overrides = {} if args.height is None else {"height": args.height}

        def backend_with(options: BackendOptions) -> Backend:
            return load_backend(args.checkpoint, None, options, overrides)[0]

        amp = args.precision
    else:
        if args.checkpoint:
            network, config = load_model(args.checkpoint, config if args.config else None)
            config = load_config(None, args.overrides + _settings_from_flags(args), base=config)
        else:
            network = PoseNet.from_config(config)
        backend_with = partial(make_backend, network, config.inference, config.model.skeleton)
        amp = select_amp(runtime.device, args.precision)
    stream_backend = backend_with(dataclasses.replace(options, parallel=True))
    backend = backend_with(options) if stream_backend.parallel_runs > 1 else stream_backend
    with tempfile.TemporaryDirectory() as folder:
        inputs = args.inputs
        if not inputs:
            images, _ = write_synthetic_images(Path(folder), _synthetic_images(args))
            inputs = [images]
        trained = network if args.compare else None
        return measure_predict(
            backend,
            stream_backend,
            find_images(inputs),
            runtime,
            args.repeats,
            name=args.backend or "default",
            amp=amp,
            trained=trained,
        )


def benchmark_track(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Compare the tracker with others on synthetic videos, and measure its smoothing and speed."""
    return measure_track(config.tracking, args.videos, args.frames, args.seed, args.repeats)


def benchmark_diagnose(args: argparse.Namespace, config: Config, runtime: Runtime) -> Report:
    """Measure the diagnosis of drawn people and results."""
    return measure_diagnose(args.num_images, args.num_people, args.results_per_image, args.seed)


COMMON_FLAGS = [
    Flag("--threads", type=positive_int, default=1, metavar="N", help="CPU threads of the network"),
    Flag("--quick", **SWITCH, help="few runs on little input: checks that the benchmark works; ignore the times"),
    Flag("--json", metavar="FILE", help="write the numbers to this file; an existing file is replaced"),
    Flag("--markdown", metavar="FILE", help="write the tables to this Markdown file; an existing file is replaced"),
]
REPEATS = Flag("--repeats", type=positive_int, metavar="N", help="timed runs; the median is reported")
DEVICE = Flag("--device", metavar="D", help=setting_help("auto, cpu, cuda, cuda:1, mps ...", "train.device"))
AMP = Flag("--amp", choices=["auto", "off", "bf16", "fp16"], help=setting_help("precision of the network", "train.amp"))
INPUT_SIZE = Flag(
    "--input-size", type=int, metavar="N", help=setting_help("side of the network's input", "train.input_size")
)
BATCH_SIZE = Flag("--batch-size", type=int, metavar="N", help=setting_help("samples in a batch", "train.batch_size"))
BATCH_SIZE_1 = Flag("--batch-size", type=int, default=1, metavar="N", help="samples in a batch (train.batch_size)")

BENCHMARKS = {
    "targets": Benchmark(
        help="target maps per second, by number of people",
        function=benchmark_targets,
        repeats=20,
        flags=[INPUT_SIZE, BATCH_SIZE_1, DEVICE],
    ),
    "network": Benchmark(
        help="time of a forward pass, number of parameters, and speed compared with a matrix product",
        function=benchmark_network,
        repeats=5,
        flags=[
            Flag(
                "--all",
                **SWITCH,
                help="instead, compare the networks of config/simplepose_{tiny,small,384}.toml for prediction",
            ),
            INPUT_SIZE,
            BATCH_SIZE_1,
            DEVICE,
            AMP,
        ],
    ),
    "train": Benchmark(
        help="time of an optimizer step on a batch in memory: forward, backward, update",
        function=benchmark_train,
        repeats=3,
        flags=[
            Flag(
                "--processes",
                type=positive_int,
                metavar="N",
                help="instead, measure the speed-up of N processes and the overhead of distributed training in one",
            ),
            Flag(
                "--h5",
                metavar="FILE",
                help="also train from this store with data.workers processes and measure how long steps wait for data",
            ),
            INPUT_SIZE,
            BATCH_SIZE,
            DEVICE,
            AMP,
        ],
    ),
    "gpu": Benchmark(
        help="everything about a GPU: options for speed at several batch sizes, checkpoints, data, prediction",
        function=benchmark_gpu,
        repeats=5,
        needs_accelerator=True,
        flags=[
            Flag(
                "--batch-sizes",
                type=positive_int,
                nargs="+",
                default=[4, 8, 16, 32],
                metavar="N",
                help="batch sizes to train with",
            ),
            Flag(
                "--compile-batch-sizes",
                type=positive_int,
                nargs="+",
                metavar="N",
                help="batch sizes to compile, which takes minutes for each; by default, the smallest of --batch-sizes "
                "and the one that is fastest without compiling",
            ),
            Flag("--h5", metavar="FILE", help="store that feeds the loader; by default, a synthetic one is built"),
            INPUT_SIZE,
            DEVICE,
        ],
    ),
    "decode": Benchmark(
        help="images per second, AP and errors of the decoder on maps rendered from annotations",
        function=benchmark_decode,
        repeats=3,
        flags=[
            Flag(
                "--annotations",
                metavar="JSON",
                help="COCO keypoint file, without its images; by default, synthetic annotations",
            ),
            Flag("--limit", type=positive_int, metavar="N", help="only the first N images (default: all)"),
            Flag("--height", type=int, metavar="N", help=setting_help("height of the images", "inference.height")),
            Flag("--degrade", **SWITCH, help="add the errors of an imperfect network to the maps"),
            Flag("--seed", type=non_negative_int, default=0, metavar="S", help="seed of --degrade"),
        ],
        quick_limits={"limit": 4},
    ),
    "predict": Benchmark(
        help="milliseconds of each stage from image file to drawing, and what a stream of images waits for",
        function=benchmark_predict,
        repeats=3,
        flags=[
            Flag(
                "inputs",
                nargs="*",
                metavar="INPUT",
                help="images, folders, or quoted glob patterns; by default, synthetic images",
            ),
            Flag(
                "--checkpoint",
                "--weights",
                metavar="FILE",
                help=f"{CHECKPOINT_OR_EXPORTED_HELP}; by default, the configured network, untrained",
            ),
            Flag(
                "--height",
                type=int,
                metavar="N",
                help=setting_help("resize images to this height", "inference.height", of_checkpoint=True),
            ),
            Flag(
                "--amp",
                choices=["auto", "off", "bf16", "fp16"],
                default="auto",
                dest="precision",
                help="precision of the network; auto is the fastest one without loss of accuracy on the device",
            ),
            Flag("--backend", choices=BACKENDS, help=BACKEND_HELP),
            Flag(
                "--compare", **SWITCH, help="also measure the network as it was trained: float32, BatchNorm not folded"
            ),
            DEVICE,
        ],
    ),
    "track": Benchmark(
        help="IDF1, HOTA and MOTA of the tracker, of norfair and of the nearest centre; jitter, lag and speed",
        function=benchmark_track,
        repeats=5,
        flags=[
            Flag("--videos", type=positive_int, default=8, metavar="N", help="synthetic videos"),
            Flag("--frames", type=positive_int, default=250, metavar="N", help="length of each video"),
            Flag("--seed", type=non_negative_int, default=0, metavar="S", help="seed of the videos and of the errors"),
        ],
        quick_limits={"videos": 1, "frames": 60},
    ),
    "diagnose": Benchmark(
        help="seconds and memory of a diagnosis of results of the size of COCO's validation split",
        function=benchmark_diagnose,
        repeats=1,
        flags=[
            Flag("--num-images", type=positive_int, default=5000, metavar="N", help="images"),
            Flag("--num-people", type=positive_int, default=11000, metavar="N", help="drawn people in all images"),
            Flag("--results-per-image", type=positive_int, default=20, metavar="N", help="results in each image"),
            Flag("--seed", type=non_negative_int, default=0, metavar="S", help="seed of the people and of the errors"),
        ],
        quick_limits={"num_images": 20, "num_people": 40},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each benchmark."""
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="benchmark")
    for name, benchmark in BENCHMARKS.items():
        subparser = subparsers.add_parser(
            name, help=benchmark.help, description=benchmark.help, formatter_class=parser.formatter_class
        )
        for flag in [*benchmark.flags, REPEATS, *COMMON_FLAGS]:
            subparser.add_argument(*flag.names, **flag.options)
        subparser.set_defaults(repeats=benchmark.repeats)
        add_config_options(subparser)


def run(args: argparse.Namespace) -> None:
    """Run one benchmark, print its table and write its numbers if --json is given."""
    benchmark = BENCHMARKS[args.benchmark]
    for flag in ("json", "markdown"):
        if getattr(args, flag):
            _check_output(flag, Path(getattr(args, flag)), args)
    if args.quick:
        _apply_limits(args, {"repeats": QUICK_REPEATS, **benchmark.quick_limits})
    cv2.setNumThreads(0)  # OpenCV would start threads besides those of --threads
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = load_config(args.config, args.overrides + _settings_from_flags(args))
    has_device_flag = "device" in args
    runtime = Runtime(select_device(config.train.device) if has_device_flag else torch.device("cpu"))
    if benchmark.needs_accelerator and runtime.device.type == "cpu" and config.train.device != "cpu":
        raise ConfigError(
            f"PyTorch {torch.__version__} finds no accelerator on this machine; --device cpu measures the CPU instead"
        )
    machine = describe_machine(runtime.device)
    messages = message_stream(args.json, args.markdown)
    print(machine.as_text() + "\n", file=messages)
    result = benchmark.function(args, config, runtime)
    report = result if isinstance(result, Report) else _save_each(result, args, machine, messages)
    print(report.as_text(), file=messages)
    for flag in ("json", "markdown"):
        _write_file(flag, args, machine, report)


def _save_each(reports: Iterator[Report], args: argparse.Namespace, machine: Machine, messages: TextIO) -> Report:
    """Write every report to the files as soon as it is there, and return the last one.

    If the next measurement ends in an error, the tables so far are printed, too.
    """
    report: Report | None = None
    try:
        for report in reports:
            _save_unfinished(report, args, machine)
    except BaseException:  # Ctrl-C too: an hour of measurements must not be lost
        if report is not None:
            print(report.as_text(), file=messages)
        raise
    assert report is not None
    return report


def _save_unfinished(report: Report, args: argparse.Namespace, machine: Machine) -> None:
    """Write the tables so far to the files, but not to standard output, which receives one complete document."""
    for flag in ("json", "markdown"):
        if is_standard_output(getattr(args, flag) or ""):
            continue
        try:
            _write_file(flag, args, machine, report)
        except OSError as error:
            _log.warning("The tables so far cannot be saved (%s); measuring continues", error)


def _write_file(flag: str, args: argparse.Namespace, machine: Machine, report: Report) -> None:
    """Write the numbers to the file of --json, or the tables to that of --markdown, if the flag is given."""
    path = getattr(args, flag)
    if not path:
        return
    if flag == "markdown":
        text = f"{_as_markdown_list(machine)}\n\n{report.as_markdown()}\n"
    else:
        numbers = {
            "benchmark": args.benchmark,
            "machine": dataclasses.asdict(machine),
            "repeats": args.repeats,
            "quick": args.quick,
            **report.numbers,
        }
        text = json.dumps(numbers, indent=2, allow_nan=False)
    write_atomically(path, text.encode())


def _as_markdown_list(machine: Machine) -> str:
    return "\n".join(f"- {line}" for line in machine.as_text().splitlines())


def _check_output(flag: str, path: Path, args: argparse.Namespace) -> None:
    """Raise ``ConfigError`` if ``path`` cannot be written or is an input file."""
    if not path.parent.is_dir():
        raise ConfigError(f"--{flag} {path}: folder {path.parent} does not exist; create it")
    if path.is_dir():
        raise ConfigError(f"--{flag} {path} is a folder; give the name of a file")
    inputs = [getattr(args, name, None) for name in ("h5", "annotations", "checkpoint", "config")]
    inputs += getattr(args, "inputs", [])
    if path.resolve() in {Path(name).resolve() for name in inputs if name}:
        raise ConfigError(f"--{flag} {path} would replace an input file; choose another name")


def _apply_limits(args: argparse.Namespace, limits: Mapping[str, int]) -> None:
    """Set flags to their limits if they have a larger value or none."""
    for name, limit in limits.items():
        value = getattr(args, name)
        setattr(args, name, limit if value is None else min(value, limit))


def _settings_from_flags(args: argparse.Namespace) -> list[str]:
    """The flags of ``SETTINGS_OF_FLAGS`` as ``key=value`` pairs; strings and numbers are the same in JSON and TOML."""
    pairs = []
    for flag, key in SETTINGS_OF_FLAGS.items():
        value = getattr(args, flag, None)
        if value is not None:
            pairs.append(f"{key}={json.dumps(value)}")
    return pairs


def _synthetic_images(args: argparse.Namespace) -> int:
    return QUICK_SYNTHETIC_IMAGES if args.quick else SYNTHETIC_IMAGES


def _matmul_side(args: argparse.Namespace, runtime: Runtime) -> int:
    """Side of the matrices of the baseline: large enough to use all cores of the device."""
    if args.quick:
        return 128
    return 1024 if runtime.device.type == "cpu" else 8192
