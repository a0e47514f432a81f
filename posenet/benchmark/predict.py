"""Time per image from file to drawing: stage by stage, in a stream, and compared with the network alone.

The stream is what ``posenet predict`` runs, where other threads read, prepare, decode and draw. If one thread runs the
network, the table shows how long it waits for each of them.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch
from posenet.devices.background import map_in_background
from posenet.devices.runtime import Runtime
from posenet.images import ChannelOrder, ImageInput, read_image
from posenet.inference.backends.backend import Backend, InputBatch, NetworkOutput
from posenet.inference.backends.exported_backend import ExportedBackend
from posenet.inference.backends.graph import Graph
from posenet.inference.backends.torch_backend import TorchBackend
from posenet.inference.media.frame_prediction import FramePrediction, predict_frames
from posenet.inference.media.outputs import DrawingWriter, drawing_suffix, output_paths
from posenet.inference.media.people_files import open_people_file
from posenet.inference.media.sources import FileSource, Frame
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.progress import progress_bar
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE, Drawing, draw_people

STREAM = "whole, in a stream"
ALONE = "network alone"
ALONE_IN_PARALLEL = "network alone, as in the stream"
TRAINED = "network as trained"
WAITS = ("read", "prepare", "decode", "draw", "write")
"""What the thread that runs the network does or waits for besides."""


class TimedNetwork(nn.Module):
    """A network that ends the stages "prepare" and "network" of a stopwatch, and remembers the shapes of its inputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.channels_last = getattr(network, "channels_last", False)
        self.parallel_runs = getattr(network, "parallel_runs", 1)
        self.stopwatch = Stopwatch()
        self.shapes: list[tuple[int, ...]] = []

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        self.stopwatch.lap("prepare")
        self.shapes.append(tuple(images.shape))
        maps = heatmaps_of(self.network)(images)
        self.stopwatch.lap("network")
        return maps

    def run_alone(self, runtime: Runtime, shapes: Sequence[tuple[int, ...]]) -> None:
        """Run the network on grey inputs of some shapes."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        run_on_grey_inputs(self.network, shapes, runtime, layout, self.parallel_runs)


class TimedGraph(Graph):
    """Like ``TimedNetwork`` for the graph of an exported file."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parallel_runs = graph.parallel_runs
        self.stopwatch = Stopwatch()
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See ``Graph``."""
        self.stopwatch.lap("prepare")
        self.shapes.append(inputs["images"].shape)
        outputs = self.graph.run(inputs)
        self.stopwatch.lap("network")
        return outputs

    def run_alone(self, runtime: Runtime, shapes: Sequence[tuple[int, ...]]) -> None:
        """Run the graph on grey inputs of some shapes."""

        def run_on_grey(shape: tuple[int, ...]) -> None:
            self.graph.run({"images": np.full(shape, 128, np.uint8), "sizes": np.full((shape[0], 2), shape[1:3])})

        run_all(run_on_grey, shapes, self.parallel_runs)


def time_network(backend: Backend) -> TimedNetwork | TimedGraph:
    """Replace the network of a backend by one that is timed; return the latter."""
    if isinstance(backend, ExportedBackend):
        backend.graph = TimedGraph(backend.graph)
        return backend.graph
    if isinstance(backend, TorchBackend):
        backend.network = TimedNetwork(backend.network)
        return backend.network
    raise TypeError(f"no benchmark for {type(backend).__name__}")


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

    def run_networks(self, batches: Iterable[InputBatch]) -> Generator[NetworkOutput, None, None]:
        """End the stage "prepare" with every batch, and the stage "network" with every output."""
        for output in super().run_networks(map(self._time_preparing, batches)):
            self.stopwatch.lap("network")
            yield output

    def _time_preparing(self, batch: InputBatch) -> InputBatch:
        self.stopwatch.lap("prepare")
        return batch


def measure_predict(
    backend: Backend,
    stream_backend: Backend,
    paths: Sequence[Path],
    runtime: Runtime,
    repeats: int,
    *,
    name: str,
    amp: str,
    trained: nn.Module | None = None,
) -> Report:
    """Read, predict and draw images one by one; predict, draw and write them in a stream; run the network alone.

    The three are measured in turn in every round, so that a slow phase of the machine affects all of them. The first
    round warms up and is not counted.

    Args:
        backend: runs the network; it cannot be used afterwards.
        stream_backend: runs the network for the stream, maybe on several batches at the same time; may be ``backend``.
        name: name of the backend, for the report.
        amp: precision of the network, for the report.
        trained: also run this network, as it was trained: in float32 and not fused.
    """
    if trained is not None:
        trained = trained.to(runtime.device).eval()
    network = time_network(backend)
    stream_network = network if stream_backend is backend else time_network(stream_backend)
    parallel_runs = stream_network.parallel_runs
    stages = Stopwatch(runtime.synchronize)
    runs = Stopwatch(runtime.synchronize)
    cpu_runs = Stopwatch(runtime.synchronize, clock=time.process_time)
    unused = Stopwatch()
    predictor = Predictor(backend)
    stream_predictor = StreamPredictor(stream_backend)
    # Reading this clock must not wait for the device. The network ends when it is queued on the device.
    waits = stream_predictor.stopwatch = Stopwatch()
    num_people = 0
    for round_index in progress_bar(range(repeats + 1), "measure", unit="round", leave=False):
        for stopwatch in (stages, runs, cpu_runs, unused, waits):
            stopwatch.start_round()
        network.stopwatch = stages
        num_people = sum(predict_one(predictor, path, stages) for path in paths)

        network.stopwatch = stream_network.stopwatch = unused
        stream_network.shapes.clear()
        runs.skip()
        cpu_runs.skip()
        predict_stream(stream_predictor, paths, waits)
        runs.lap(STREAM)
        cpu_runs.lap(STREAM)
        network.run_alone(runtime, stream_network.shapes)
        runs.lap(ALONE)
        cpu_runs.lap(ALONE)
        if parallel_runs > 1:
            stream_network.run_alone(runtime, stream_network.shapes)
            runs.lap(ALONE_IN_PARALLEL)
            cpu_runs.lap(ALONE_IN_PARALLEL)
        if trained is not None:
            run_on_grey_inputs(trained, stream_network.shapes, runtime, torch.contiguous_format)
            runs.lap(TRAINED)
        if round_index == 0:
            for stopwatch in (stages, runs, cpu_runs, waits):
                stopwatch.reset()

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
    for stage, stage_time in [*stage_ms.items(), ("whole, one by one", whole_ms)]:
        rows.append((stage, stage_time, percent(stage_time, whole_ms), percent(stage_time, network_ms)))
    rows += [(run, run_time, None, percent(run_time, alone_ms)) for run, run_time in run_ms.items()]
    cpu_seconds = cpu_runs.stage_medians()
    outside = {name: 1 - run_ms[name] / stream_ms for name in (ALONE, ALONE_IN_PARALLEL) if name in run_ms}
    outside_cpu = {name: 1 - cpu_seconds[name] / cpu_seconds[STREAM] for name in outside}
    notes = [
        f"{num_people} people found and drawn, with scores of at least {MIN_SCORE} as in posenet predict",
        "in a stream, where other threads read, prepare, decode and draw images, prediction takes "
        f"{stream_ms / alone_ms:.2f} times as long as the network alone",
    ]
    for baseline in outside:
        share = percent(outside[baseline], 1)
        cpu_share = percent(outside_cpu[baseline], 1)
        notes.append(
            f"outside the network: {share} of the stream, {cpu_share} of its processor time, "
            f"which other programs do not change ({baseline})"
        )
    wait_ms: dict[str, float] | None = None
    waited: float | None = None
    if parallel_runs > 1:
        notes.append(
            f"the stream runs {parallel_runs} batches at the same time, each on a share of the threads; "
            f"{ALONE} stands for one batch after the other on all threads"
        )
    else:
        stream_stage_ms = {stage: per_image(seconds) for stage, seconds in waits.stage_medians().items()}
        in_network = stream_stage_ms["network"]
        rows.append(("  network in the stream", in_network, percent(in_network, stream_ms), None))
        wait_ms = {stage: stream_stage_ms[stage] for stage in WAITS}
        rows += [(f"  waits to {stage}", ms, percent(ms, stream_ms), None) for stage, ms in wait_ms.items()]
        waited = sum(wait_ms.values()) / stream_ms
        notes.append(f"the network waits for {percent(waited, 1)} of the stream")
    if not num_people:
        notes.append("decoding and drawing take longer if the images contain people")
    return Report(
        title=f"predict: {len(paths)} images, {settings.height} pixels high, scales "
        f"{' '.join(map(str, settings.scales))}, {'with' if settings.flip else 'no'} flip, "
        f"backend {name}, amp {amp}, "
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
            "parallel_runs": parallel_runs,
            "alone_in_parallel_ms": run_ms.get(ALONE_IN_PARALLEL),
            "stream_over_alone": stream_ms / alone_ms,
            "wait_ms": wait_ms,
            "waited_share": waited,
            "outside_share": outside[ALONE],
            "outside_cpu_share": outside_cpu[ALONE],
            "outside_share_in_parallel": outside.get(ALONE_IN_PARALLEL),
            "outside_cpu_share_in_parallel": outside_cpu.get(ALONE_IN_PARALLEL),
            "backend": name,
            "amp": amp,
            "trained_ms": run_ms.get(TRAINED),
            "pictures": len(paths),
            "people": num_people,
        },
        notes=notes,
    )


def choose_people(people: Sequence[Person]) -> list[Person]:
    """The people that ``posenet predict`` draws and writes unless it is told otherwise."""
    return [person for person in people if person.score >= MIN_SCORE]


def draw(image: np.ndarray, people: Sequence[Person]) -> Drawing:
    """Draw people as ``posenet predict`` does."""
    return draw_people(image, people, keypoint_min_score=KEYPOINT_MIN_SCORE)


def predict_one(predictor: Predictor, path: Path, stopwatch: Stopwatch) -> int:
    """Run all stages on one image; return the number of people drawn."""
    stopwatch.skip()
    image = read_image(path)
    stopwatch.lap("read")
    people = predictor(image)
    stopwatch.lap("decode")
    people = choose_people(people)
    draw(image, people)
    stopwatch.lap("draw")
    return len(people)


def predict_stream(predictor: StreamPredictor, paths: Sequence[Path], waits: Stopwatch) -> None:
    """Predict images, draw them and write their people as ``posenet predict`` does, into a temporary folder."""
    sources = [FileSource("image", path) for path in paths]

    def write_drawing(prediction: FramePrediction) -> FramePrediction:
        frame = prediction.frame
        if isinstance(frame, Frame):
            drawings.write(frame, prediction.people, draw(frame.image, prediction.people))
        return prediction

    def time_decoding() -> Iterator[FramePrediction]:
        for prediction in predictions:
            waits.lap("decode")
            yield prediction._replace(people=choose_people(prediction.people))

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drawings = stack.enter_context(DrawingWriter(output_paths(sources, folder / "drawings", drawing_suffix)))
        people_file = stack.enter_context(open_people_file(folder / "people.jsonl", sources))
        predictions = stack.enter_context(contextlib.closing(predict_frames(predictor, sources)))
        waits.skip()
        for prediction in map_in_background(write_drawing, time_decoding(), ahead=predictor.settings.batch_size):
            waits.lap("draw")
            frame = prediction.frame
            if isinstance(frame, Frame):
                people_file.write(frame, prediction.people, frame.image)
            waits.lap("write")


def heatmaps_of(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The method of a network that returns its maps."""
    return cast(Callable[[Tensor], Tensor], network.heatmaps)


def run_on_grey_inputs(
    network: nn.Module,
    shapes: Sequence[tuple[int, ...]],
    runtime: Runtime,
    layout: torch.memory_format,
    parallel_runs: int = 1,
) -> None:
    """Run a network on grey inputs of some shapes, ``parallel_runs`` at a time."""

    @torch.inference_mode()
    def run_on_grey(shape: tuple[int, ...]) -> None:
        heatmaps_of(network)(torch.full(shape, 0.5, device=runtime.device).contiguous(memory_format=layout))

    run_all(run_on_grey, shapes, parallel_runs)


def run_all(run: Callable[[tuple[int, ...]], None], shapes: Sequence[tuple[int, ...]], parallel_runs: int) -> None:
    """Call a function for all shapes, with several calls at a time if ``parallel_runs`` is above 1."""
    if parallel_runs == 1:  # as in ``Predictor.run_networks``
        for shape in shapes:
            run(shape)
    else:
        for _ in map_in_background(run, shapes, workers=parallel_runs, ahead=parallel_runs):
            pass
