"""An accelerator: its tests, prediction, the training step, trainings on photographs, and the loaders beside the step.

A machine with an accelerator is often lent for minutes. Every result is written as soon as it is there, an error
becomes a note below its table, and no measurement begins after the time of its part, or after ``--minutes``.
"""

import argparse
import dataclasses
import gc
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.profiler import ProfilerActivity

import posenet
from benchmarks import data, decode, predict
from benchmarks.measuring import Table, count_flop, matmul_flop_per_s, measure
from benchmarks.train import Steps, build_steps
from posenet.checkpoints.file import write_checkpoint
from posenet.data.build import build_store
from posenet.devices.device import peak_memory
from posenet.devices.precision import DTYPES
from posenet.errors import ConfigError
from posenet.images import read_image, write_image
from posenet.messages import to_single_line
from posenet.model.posenet import PoseNet
from posenet.settings import Config, config_to_dict, load_config
from posenet.synthetic.dataset import write_dataset
from posenet.threads import usable_cores
from posenet.training.log import TrainingCallback
from posenet.training.run import TrainingResult

ROOT = Path(__file__).parents[2]
SMALL = "model.stacks=1 model.width=16 model.growth=2 train.input_size=64 inference.height=128 train.amp=off".split()
"""The network of ``--small``."""
COMPILE_OPTIONS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "compiled": {},
    "CUDA graphs": {"mode": "reduce-overhead"},
}
"""For each way to compute a step the arguments of ``torch.compile``; None does not compile."""
PROFILE_ROWS = 15
TRAININGS = {"small": 256, "simplepose_512": 192}
"""Experiments, one of them with 4 stacks, and the height of their input for photographs of some 200 pixels."""
SPEED_STEPS = 40
"""Steps whose speed decides how many epochs fit into the time."""
EVALUATION_SHARE = 0.15
"""Share of the time of a training that is left for its evaluation."""
GRACE_SECONDS = 60.0
"""Time after the deadline in which a training that has begun may still be evaluated."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument(
        "--output", type=Path, default=Path("checkpoints/gpu"), metavar="DIR", help="for tables, numbers and trainings"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="P", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=45.0, metavar="M", help="begin nothing after M; 45 by default")
    parser.add_argument(
        "--lsp", type=Path, metavar="DIR", help="Leeds Sports Pose as COCO files: train.json, train, val.json, val"
    )
    parser.add_argument(
        "--training-minutes", type=float, default=10.0, metavar="M", help="for each training; 10 by default"
    )
    parser.add_argument("--small", action="store_true", help="try out the program: a tiny network, a few drawn images")
    parser.set_defaults(device="auto")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """Run the parts one after the other; each yields its table after every row."""
    if device.type == "cpu" and not args.small:
        raise ConfigError("PyTorch finds no accelerator here; --small --device cpu tries the program out")
    args.output.mkdir(parents=True, exist_ok=True)
    args.json, args.markdown = args.output / "gpu.json", args.output / "gpu.md"
    end = time.monotonic() + 60 * args.minutes
    if args.small:
        config = load_config(None, SMALL)
    for name in args.parts:
        measure_part, minutes = PARTS[name]
        args.deadline = min(end, time.monotonic() + 60 * (minutes or 2 * args.training_minutes))
        yield from measure_part(args, config, device)


def add_row(table: Table, args: argparse.Namespace, name: str, task: Callable[..., dict[str, Any]], *of: Any) -> Table:
    """Add the numbers that ``task(*of)`` returns, or why there are none, to a table with columns of these names."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if time.monotonic() > args.deadline:
        table.notes.append(f"not measured, for lack of time: {name}")
        return table
    try:
        numbers = task(*of)
    except torch.OutOfMemoryError:
        table.notes.append(f"failed: {name}: too little memory")
    except Exception as error:
        reason = to_single_line(str(error)) or type(error).__name__
        table.notes.append(f"failed: {name}: {reason[:300]}")
    else:
        table.rows.append((name, *(numbers.get(column) for column in table.header[1:])))
        table.numbers.setdefault(table.title.partition(":")[0], {})[name] = numbers
    return table


def check_device(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """The device suite, which compares every part with the CPU."""
    table = Table("tests: the device suite", ("command", "result", "seconds"))
    tests = ["tests/devices", *(["-k", "three_steps"] if args.small else [])]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *tests]

    def test() -> dict[str, Any]:
        started = time.monotonic()
        limit = max(args.deadline - started, 1)
        output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit).stdout
        table.notes += re.findall(r"^FAILED .*", output, re.MULTILINE)
        return {"result": output.splitlines()[-1], "seconds": time.monotonic() - started}

    yield add_row(table, args, "pytest -m gpu", test)


def time_prediction(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """From JPEG files to people, and its stages: the network, the decoder, and all the rest."""
    folder, images, checkpoint = drawn_people(args), args.output / "images", args.output / "untrained.pth"
    images.mkdir(exist_ok=True)
    for path in (folder / "val2017").iterdir():
        write_image(images / path.name, cv2.resize(read_image(path), (640, 480)))
    network = PoseNet.from_config(config)
    write_checkpoint(checkpoint, {"model": network.state_dict(), "config": config_to_dict(config)})
    columns = ("images/s", "network alone, images/s", "share", "other processor time, ms/image", "images per batch")
    table = Table(
        f"prediction: {config.model.stacks} stacks, {config.inference.height} pixels high, JPEG files of 640 x 480",
        ("way", *columns),
        notes=["the network is not trained and finds nobody: the time of the decoder is in a table of its own"],
    )
    precisions = ["off"] if device.type == "cpu" else ["bf16", "fp16"]
    ways = (("", False, [1.0], 256), (", flip and 4 scales", True, [0.5, 1.0, 1.5, 2.0], 64))
    for way, flip, scales, limit in ways:
        for amp, batch_size in itertools.product(precisions, [2] if args.small else [1, 8, 32]):
            arguments = argparse.Namespace(
                images=[str(images)],
                checkpoint=[str(checkpoint)],
                backend="torch",
                amp=amp,
                flip=flip,
                scales=scales,
                batch_size=batch_size,
                limit=limit,
                repeats=1 if args.small else 2,
            )

            def predict_files(arguments: argparse.Namespace) -> dict[str, Any]:
                [measured] = predict.run(arguments, config, device)
                return dict(zip(columns, measured.rows[0][1:]))

            yield add_row(table, args, f"{amp}, batch {batch_size}{way}", predict_files, arguments)
    decoder = Table("decoder: one core", ("maps", "AP", "ms/image", "AP of degraded maps", "ms/image of degraded maps"))

    def decode_maps() -> dict[str, Any]:
        annotations = folder / "annotations" / "person_keypoints_val2017.json"
        arguments = argparse.Namespace(annotations=annotations, limit=32, seed=0, repeats=1)
        [measured] = decode.run(arguments, config, device)
        names = ("perfect_ap", "perfect_ms_per_image", "degraded_ap", "degraded_ms_per_image")
        return dict(zip(decoder.header[1:], (measured.numbers[name] for name in names)))

    yield add_row(decoder, args, "of the drawn people", decode_maps)


def time_steps(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """The training step, eager, compiled and with CUDA graphs, and what of it takes the time."""
    height, width = config.train.size
    columns = ("ms/step", "images/s", "of a matrix product", "cost of checks", "peak GiB")
    table = Table(
        f"steps: {config.model.stacks} stacks of width {config.model.width} at {height} x {width}",
        ("way", *columns),
        notes=["cost of checks: reading the losses and the gradient norm in each step"],
    )

    def time_step(settings: Config, options: dict[str, Any] | None, profile: Table) -> dict[str, Any]:
        steps = build_steps(settings, device)
        flop = count_training_flop(settings)
        if options is not None:
            torch.compiler.reset()
            steps.model.compile(**options)
        seconds = measure({"checked": steps.checked, "plain": steps.plain}, args.repeats)
        limit = matmul_flop_per_s(device, DTYPES[steps.model.amp], args.repeats, side=256 if args.small else 0)
        profile.rows += profile_step(steps, device)
        share, cost = flop / seconds["checked"] / limit, seconds["checked"] / seconds["plain"] - 1
        speed = settings.train.batch_size / seconds["checked"]
        memory = (peak_memory(device) or 0) / 2**30
        return dict(zip(columns, (1000 * seconds["checked"], speed, f"{share:.0%}", f"{cost:+.1%}", memory)))

    # The most important ones first, because compiling takes minutes.
    ways = [(2, "eager")] if args.small else itertools.product([32, 16, 64], COMPILE_OPTIONS)
    for batch_size, name in ways:
        train = dataclasses.replace(config.train, batch_size=batch_size)
        parallel = dataclasses.replace(config.parallel, compile=False)
        settings = dataclasses.replace(config, train=train, parallel=parallel)
        way = f"{name}, batch {batch_size}"
        profile = Table(f"profile of a step: {way}", ("operation", "ms/step", "calls/step"))
        yield add_row(table, args, way, time_step, settings, COMPILE_OPTIONS[name], profile)
        if profile.rows:
            yield profile


def count_training_flop(config: Config) -> int:
    """Operations of a training step, which is not computed; a compiled one cannot be counted."""
    with torch.device("meta"):
        network = PoseNet.from_config(config)
        images = torch.empty(config.train.batch_size, 3, *config.train.size)
    return count_flop(lambda: sum(maps.sum() for scales in network(images) for maps in scales).backward())


def profile_step(steps: Steps, device: torch.device, count: int = 3) -> list[tuple[str, float, float]]:
    """For the operations that take most of a step: the name, milliseconds on the device, and calls."""
    on_device = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(count):
            steps.checked()
    rows = []
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if on_device else event.self_cpu_time_total
        rows.append((event.key[:80], microseconds / 1000 / count, event.count / count))
    return sorted(rows, key=lambda row: row[1], reverse=True)[:PROFILE_ROWS]


def train_on_photographs(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """Trainings of a stated time on Leeds Sports Pose, each evaluated at once."""
    columns = ("epochs", "samples/s", "minutes", "PCK@0.2", "AP")
    table = Table("trainings: people of val.json after a training on train.json", ("experiment", *columns))
    if args.lsp is None and not args.small:
        table.notes.append("not measured: name the folder of the photographs with --lsp")
        yield table
        return
    for experiment, height in {"tiny": 64}.items() if args.small else TRAININGS.items():
        way = f"{experiment}, {height} pixels"
        yield add_row(table, args, way, train_for_minutes, args, experiment, height, device)


class Clock(TrainingCallback):
    """Notes the speed of a run, and asks it to stop, as SLURM does, at the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.samples_per_s = 0.0

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self.samples_per_s = values["samples_per_s"]
        if time.monotonic() > self.deadline:
            signal.raise_signal(signal.SIGUSR1)


def train_for_minutes(args: argparse.Namespace, experiment: str, height: int, device: torch.device) -> dict[str, Any]:
    """Train as many epochs as fit into the time, with a learning rate that falls to 0, and evaluate the result."""
    started = time.monotonic()
    end = min(started + 60 * args.training_minutes, args.deadline + GRACE_SECONDS)
    drawn = drawn_people(args)
    files = {
        split: (args.lsp / f"{split}.json", args.lsp / split)
        if args.lsp
        else (drawn / "annotations" / f"person_keypoints_{split}2017.json", drawn / f"{split}2017")
        for split in ("train", "val")
    }

    def train(name: str, epochs: int, max_steps: int = 0) -> tuple[TrainingResult, float]:
        clock = Clock(end - EVALUATION_SHARE * (end - started))
        overrides = [
            f"checkpoint.path={str(args.output / f'{experiment}-{name}')!r}",
            f"train.epochs={epochs}",
            f"train.batch_size={2 if args.small else 64}",
            f"train.input_size={height}",
            f"inference.height={height}",
            f"train.device={str(device)!r}",
            "train.evaluate_every=0",
            "optim.schedule='cosine'",
            f"data.workers={0 if args.small else max(usable_cores() - 2, 1)}",
        ]
        (annotations, images), (val, val_images) = files["train"], files["val"]
        result = posenet.train(
            annotations,
            overrides,
            images=images,
            val=val,
            val_images=val_images,
            experiment=experiment,
            max_steps=max_steps,
            callbacks=[clock],
            progress=False,
        )
        return result, clock.samples_per_s

    _, speed = train("speed", epochs=1000, max_steps=2 if args.small else SPEED_STEPS)
    num_samples = len(json.loads(files["train"][0].read_text())["annotations"])
    left = end - time.monotonic() - EVALUATION_SHARE * (end - started)
    result, speed = train("run", epochs=1 if args.small else max(1, int(left * speed / num_samples)))
    annotations, images = files["val"]
    evaluation = posenet.evaluate(
        result.folder / "last.pth", images, annotations, device=str(device), backend="torch", progress=False
    )
    assert evaluation is not None  # this process is the only one
    (args.output / f"{experiment}-results.json").write_text(json.dumps(list(evaluation.results)))
    return {
        "epochs": result.epochs,
        "samples/s": speed,
        "minutes": (time.monotonic() - started) / 60,
        "PCK@0.2": pck(json.loads(annotations.read_text()), evaluation.results),
        "AP": evaluation.metrics["AP"],
    }


def pck(truth: dict[str, Any], results: Sequence[Mapping[str, Any]]) -> float:
    """The share of labelled keypoints that are within 0.2 of the torso of the result that agrees best with a person.

    The torso is the distance of a shoulder from the hip of the other side, or 0.3 of the longer side of the box.
    """
    names = truth["categories"][0]["keypoints"]
    found: dict[int, list[np.ndarray]] = {}
    for result in results:
        found.setdefault(result["image_id"], []).append(np.reshape(result["keypoints"], (-1, 3))[:, :2])
    num_correct = num_labelled = 0
    for person in truth["annotations"]:
        keypoints = np.reshape(person["keypoints"], (-1, 3)).astype(float)
        is_labelled = keypoints[:, 2] > 0
        torso = 0.3 * max(person["bbox"][2:])
        for pair in (("right_shoulder", "left_hip"), ("left_shoulder", "right_hip")):
            a, b = (names.index(name) for name in pair)
            if is_labelled[a] and is_labelled[b]:
                torso = np.linalg.norm(keypoints[a, :2] - keypoints[b, :2])
        limit = max(0.2 * torso, 1.0)
        distances = [np.linalg.norm(other - keypoints[:, :2], axis=1) for other in found.get(person["image_id"], [])]
        num_labelled += is_labelled.sum()
        if distances:
            best = max(distances, key=lambda d: np.exp(-((d[is_labelled] / limit) ** 2) / 2).sum())
            num_correct += (is_labelled & (best <= limit)).sum()
    return float(num_correct / max(num_labelled, 1))


def time_loaders(args: argparse.Namespace, config: Config, device: torch.device) -> Iterator[Table]:
    """Samples from loaders with a process on every core, to be compared with the images that a step takes."""
    folder = drawn_people(args)
    store = args.output / "drawn.h5"
    columns = ("loader, samples/s", "one process, samples/s", "decoding and warping alone, samples/s")
    table = Table("loaders: samples of images of drawn people", ("workers", *columns))

    def load(workers: int) -> dict[str, Any]:
        arguments = argparse.Namespace(h5=store, samples=4 if args.small else 1000, workers=workers, repeats=1)
        [measured] = data.run(arguments, config, device)
        names = ("loader_samples_per_s", "samples_per_s", "bound_samples_per_s")
        return dict(zip(columns, (measured.numbers[name] for name in names)))

    annotations = folder / "annotations" / "person_keypoints_val2017.json"
    build_store(folder / "val2017", annotations, store, overwrite=True)
    for workers in [1] if args.small else [4, 8, usable_cores()]:
        yield add_row(table, args, str(workers), load, workers)


def drawn_people(args: argparse.Namespace) -> Path:
    """The folder of images of drawn people, as a COCO data set, which are drawn at the first call."""
    folder: Path = args.output / "drawn"
    if not folder.exists():
        write_dataset(folder, train=4 if args.small else 0, val=4 if args.small else 256, size=640)
    return folder


PARTS: dict[str, tuple[Callable[[argparse.Namespace, Config, torch.device], Iterator[Table]], float]] = {
    "tests": (check_device, 5),
    "prediction": (time_prediction, 5),
    "steps": (time_steps, 9),
    "trainings": (train_on_photographs, 0),
    "loaders": (time_loaders, 3),
}
"""In the order in which they run, each with its minutes; 0 stands for those of two trainings."""
