"""Time per image from file to drawing: stage by stage, in a stream, and compared with the network alone.

The stream is what ``posenet predict`` runs, where other threads read, prepare, decode and draw. Its table shows how
long the thread that runs the network waits for each of them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch
from posenet.devices.background import map_in_background
from posenet.devices.precision import Amp
from posenet.devices.runtime import Runtime
from posenet.images.image_files import ChannelOrder, ImageInput, read_image
from posenet.inference.backends.backend import InputBatch, NetworkOutput
from posenet.inference.media.frame_prediction import FramePrediction, predict_frames
from posenet.inference.media.outputs import DrawingWriter, drawing_suffix, output_paths
from posenet.inference.media.people_files import open_people_file
from posenet.inference.media.sources import FileSource, Frame
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.progress import progress_bar
from posenet.visualization.people import draw_people

STREAM = "whole, in a stream"
ALONE = "network alone"
TRAINED = "network as trained"
WAITS = ("read", "prepare", "decode", "draw", "write")
"""What the thread that runs the network does or waits for besides."""


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


class StreamPredictor(Predictor):
    """A predictor that times what the thread of the network waits for in a stream."""

    stopwatch: Stopwatch

    def stream_groups(
        self, groups: Iterable[Iterable[ImageInput]], channels: ChannelOrder = "bgr"
    ) -> Generator[list[Person], None, None]:
        """End the stage "read" with every image."""
        return super().stream_groups(map(self._time_reading, groups), channels)

    def _time_reading(self, images: Iterable[ImageInput]) -> Iterator[ImageInput]:
        for image in images:
            self.stopwatch.lap("read")
            yield image

    def run_network(self, batch: InputBatch) -> NetworkOutput:
        """End the stage "prepare", then the stage "network"."""
        self.stopwatch.lap("prepare")
        output = super().run_network(batch)
        self.stopwatch.lap("network")
        return output


MakePredictor = Callable[[type[Predictor], nn.Module], Predictor]
"""Builds a predictor of a class for a network."""


def measure_predict(
    network: nn.Module,
    amp: Amp,
    make_predictor: MakePredictor,
    paths: Sequence[Path],
    runtime: Runtime,
    repeats: int,
    compare: bool = False,
) -> Report:
    """Read, predict and draw images one by one; predict, draw and write them in a stream; run the network alone.

    The three are measured in turn in every round, so that a slow phase of the machine affects all of them. The first
    round warms up and is not counted.

    The network that is measured is a fused copy of ``network`` in the precision ``amp``. ``compare`` also runs the
    network as it was trained: in float32 and not fused.
    """
    fused = FusedNetwork(network, amp).to(runtime.device)
    trained = network.to(runtime.device).eval()
    stages = Stopwatch(runtime.synchronize)
    runs = Stopwatch(runtime.synchronize)
    unused = Stopwatch()
    predictor = make_predictor(Predictor, TimedNetwork(fused, stages))
    streamed = TimedNetwork(fused, unused)
    stream_predictor = cast(StreamPredictor, make_predictor(StreamPredictor, streamed))
    # Reading this clock must not wait for the device. The network ends when its result has been copied to the host.
    waits = stream_predictor.stopwatch = Stopwatch()
    num_people = 0
    for round_index in progress_bar(range(repeats + 1), "measure", unit="round", leave=False):
        for stopwatch in (stages, runs, unused, waits):
            stopwatch.start_round()
        num_people = sum(predict_one(predictor, path, stages) for path in paths)

        streamed.shapes.clear()
        runs.skip()
        predict_stream(stream_predictor, paths, waits)
        runs.lap(STREAM)
        _run_alone(fused, streamed.shapes, runtime, torch.channels_last)
        runs.lap(ALONE)
        if compare:
            _run_alone(trained, streamed.shapes, runtime, torch.contiguous_format)
            runs.lap(TRAINED)
        if round_index == 0:
            stages.reset()
            runs.reset()
            waits.reset()

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
    wait_ms = {stage: per_image(seconds) for stage, seconds in waits.stage_medians().items()}
    rows.append(("  network in the stream", wait_ms["network"], percent(wait_ms["network"], stream_ms), None))
    for stage in WAITS:
        rows.append((f"  waits to {stage}", wait_ms[stage], percent(wait_ms[stage], stream_ms), None))
    waited = sum(wait_ms[stage] for stage in WAITS)
    notes = [
        f"{num_people} people found",
        "in a stream, where other threads read, prepare, decode and draw images, prediction takes "
        f"{stream_ms / alone_ms:.2f} times as long as the network alone",
        f"{percent(waited, stream_ms)} of the stream is spent outside the network",
    ]
    if not num_people:
        notes.append("decoding and drawing take longer if the images contain people")
    return Report(
        title=f"predict: {len(paths)} images, {settings.height} pixels high, scales "
        f"{' '.join(map(str, settings.scales))}, {'with' if settings.flip else 'no'} flip, amp {amp}, "
        f"batches of up to {settings.batch_size} in the stream",
        header=("stage", "ms/image", "of the whole or stream", "of the network"),
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
            "wait_ms": {stage: wait_ms[stage] for stage in WAITS},
            "waited_share": waited / stream_ms,
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


def predict_stream(predictor: StreamPredictor, paths: Sequence[Path], waits: Stopwatch) -> None:
    """Predict images, draw them and write their people as ``posenet predict`` does, into a temporary folder."""
    sources = [FileSource("image", path) for path in paths]

    def draw(prediction: FramePrediction) -> FramePrediction:
        frame = prediction.frame
        if isinstance(frame, Frame):
            drawings.write(frame, prediction.people, draw_people(frame.image, prediction.people))
        return prediction

    def time_decoding() -> Iterator[FramePrediction]:
        for prediction in predictions:
            waits.lap("decode")
            yield prediction

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drawings = stack.enter_context(DrawingWriter(output_paths(sources, folder / "drawings", drawing_suffix)))
        people_file = stack.enter_context(open_people_file(folder / "people.jsonl", sources))
        predictions = stack.enter_context(contextlib.closing(predict_frames(predictor, sources)))
        waits.skip()
        for prediction in map_in_background(draw, time_decoding(), ahead=predictor.settings.batch_size):
            waits.lap("draw")
            frame = prediction.frame
            if isinstance(frame, Frame):
                people_file.write(frame, prediction.people, frame.image)
            waits.lap("write")


def _run_alone(network: nn.Module, shapes: Sequence[torch.Size], runtime: Runtime, layout: torch.memory_format) -> None:
    """Run a network on grey inputs of some shapes."""
    heatmaps = cast(Callable[[Tensor], Tensor], network.heatmaps)
    with torch.inference_mode():
        for shape in shapes:
            heatmaps(torch.full(shape, 0.5, device=runtime.device).contiguous(memory_format=layout))
