"""Time per image from file to drawing: stage by stage, in a stream, and compared with the network alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch
from posenet.devices.background import map_in_background
from posenet.devices.precision import Amp
from posenet.devices.runtime import Runtime
from posenet.images.image_files import read_image
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.progress import progress_bar
from posenet.visualization.people import draw_people

STREAM = "whole, in a stream"
ALONE = "network alone"
TRAINED = "network as trained"


class TimedNetwork(nn.Module):
    """A network that ends the stages "prepare" and "network" of a stopwatch, and remembers the shapes of its inputs."""

    channels_last = True

    def __init__(self, network: FusedNetwork, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.network = network
        self.stopwatch = stopwatch
        self.shapes: list[torch.Size] = []

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        self.stopwatch.lap("prepare")
        self.shapes.append(images.shape)
        maps = self.network.heatmaps(images)
        self.stopwatch.lap("network")
        return maps


def measure_predict(
    network: nn.Module,
    amp: Amp,
    make_predictor: Callable[[nn.Module], Predictor],
    paths: Sequence[Path],
    runtime: Runtime,
    repeats: int,
    compare: bool = False,
) -> Report:
    """Read, predict and draw images one by one; read and predict them in a stream; run the network alone.

    The three are measured in turn in every round, so that a slow phase of the machine affects all of them. The first
    round warms up and is not counted.

    The network that is measured is a fused copy of ``network`` in the precision ``amp``. ``compare`` also runs the
    network as it was trained: in float32 and not fused.
    """
    fused = FusedNetwork(network, amp).to(runtime.device)
    trained = network.to(runtime.device).eval()
    stages = Stopwatch(runtime.synchronize)
    runs = Stopwatch(runtime.synchronize)
    unused = Stopwatch(runtime.synchronize)
    predictor = make_predictor(TimedNetwork(fused, stages))
    streamed = TimedNetwork(fused, unused)
    stream = make_predictor(streamed).stream
    num_people = 0
    for round_index in progress_bar(range(repeats + 1), "measure", unit="round", leave=False):
        for stopwatch in (stages, runs, unused):
            stopwatch.start_round()
        num_people = sum(predict_one(predictor, path, stages) for path in paths)

        streamed.shapes.clear()
        runs.skip()
        for _ in stream(map_in_background(read_image, paths, workers=2, ahead=8)):
            pass
        runs.lap(STREAM)
        _run_alone(fused, streamed.shapes, runtime, torch.channels_last)
        runs.lap(ALONE)
        if compare:
            _run_alone(trained, streamed.shapes, runtime, torch.contiguous_format)
            runs.lap(TRAINED)
        if round_index == 0:
            stages.reset()
            runs.reset()

    def per_image(seconds: float) -> float:
        """Milliseconds."""
        return 1000 * seconds / len(paths)

    settings = predictor.settings
    stage_ms = {stage: per_image(seconds) for stage, seconds in stages.stage_medians().items()}
    whole_ms = per_image(stages.round_median())
    network_ms = stage_ms["network"]
    run_ms = {run: per_image(seconds) for run, seconds in runs.stage_medians().items()}
    stream_ms = run_ms[STREAM]
    alone_ms = run_ms[ALONE]
    rows: list[tuple[str | float | None, ...]] = []
    for stage, time in [*stage_ms.items(), ("whole, one by one", whole_ms)]:
        rows.append((stage, time, percent(time, whole_ms), percent(time, network_ms)))
    rows += [(run, time, None, percent(time, alone_ms)) for run, time in run_ms.items()]
    notes = [
        f"{num_people} people found; in a stream, where other threads read, prepare and decode images, prediction "
        f"takes {stream_ms / alone_ms:.2f} times as long as the network alone"
    ]
    if not num_people:
        notes.append("decoding and drawing take longer if the images contain people")
    return Report(
        title=f"predict: {len(paths)} images, {settings.height} pixels high, scales "
        f"{' '.join(map(str, settings.scales))}, {'with' if settings.flip else 'no'} flip, amp {amp}, "
        f"batches of up to {settings.batch_size} in the stream",
        header=("stage", "ms/image", "of the whole", "of the network"),
        rows=rows,
        numbers={
            "stage_ms": stage_ms,
            "whole_ms": whole_ms,
            "pictures_per_s": 1000 / whole_ms,
            "network_ms": network_ms,
            "whole_over_network": whole_ms / network_ms,
            "stream_ms": stream_ms,
            "stream_pictures_per_s": 1000 / stream_ms,
            "alone_ms": alone_ms,
            "stream_over_alone": stream_ms / alone_ms,
            "trained_ms": run_ms.get(TRAINED),
            "amp": amp,
            "pictures": len(paths),
            "people": num_people,
        },
        notes=notes,
    )


def predict_one(predictor: Predictor, path: Path, stopwatch: Stopwatch) -> int:
    """Run all stages on one image; return the number of people in it."""
    stopwatch.skip()
    image = read_image(path)
    stopwatch.lap("read")
    people = predictor(image)
    stopwatch.lap("decode")
    draw_people(image, people)
    stopwatch.lap("draw")
    return len(people)


def _run_alone(network: nn.Module, shapes: Sequence[torch.Size], runtime: Runtime, layout: torch.memory_format) -> None:
    """Run a network on grey inputs of some shapes."""
    heatmaps = cast(Callable[[Tensor], Tensor], network.heatmaps)
    with torch.inference_mode():
        for shape in shapes:
            heatmaps(torch.full(shape, 0.5, device=runtime.device).contiguous(memory_format=layout))
