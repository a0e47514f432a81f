"""How long an image takes from file to drawing: stage by stage, in a stream, and against the network alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch
from posenet.devices.precision import Amp
from posenet.devices.runtime import Runtime
from posenet.images.image_files import map_ahead, read_image
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.visualization.people import draw_people

STREAM, ALONE, TRAINED = "whole, in a stream", "network alone", "network as trained"


class WatchedNetwork(nn.Module):
    """A network that looks at the watch before and after it runs; the rest is the predictor's own work.

    Attributes:
        shapes: of all inputs so far.
    """

    channels_last = True

    def __init__(self, network: nn.Module, watch: Stopwatch) -> None:
        super().__init__()
        self.network, self.watch = network, watch
        self.shapes: list[torch.Size] = []

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        self.watch.lap("prepare")
        self.shapes.append(images.shape)
        maps = self.network.heatmaps(images)
        self.watch.lap("network")
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

    The three take turns, so that a slow spell of the machine hits them alike.

    Args:
        network: has ``heatmaps``; its deployed copy is measured.
        amp: precision of the copy.
        make_predictor: the predictor of a network.
        paths: images.
        compare: run the network as it was trained, too: in float32, nothing folded.

    Raises:
        DataError: an image that cannot be read.
    """
    deployed = FusedNetwork(network, amp).to(runtime.device)
    trained = network.to(runtime.device).eval()
    stages, wholes, unread = (Stopwatch(runtime.synchronize) for _ in range(3))
    predictor = make_predictor(WatchedNetwork(deployed, stages))
    streamed = WatchedNetwork(deployed, unread)
    stream = make_predictor(streamed).stream
    people = 0
    for turn in tqdm(range(repeats + 1), desc="measure", leave=False, disable=None):
        for watch in (stages, wholes, unread):
            watch.start_round()
        people = sum(predict_one(predictor, path, stages) for path in paths)

        streamed.shapes.clear()
        wholes.skip()
        for _ in stream(map_ahead(read_image, paths, workers=2, ahead=8)):
            pass
        wholes.lap(STREAM)
        _run_alone(deployed, streamed.shapes, runtime, torch.channels_last)
        wholes.lap(ALONE)
        if compare:
            _run_alone(trained, streamed.shapes, runtime, torch.contiguous_format)
            wholes.lap(TRAINED)
        if not turn:
            stages.reset()
            wholes.reset()
    return _report(
        predictor,
        amp,
        len(paths),
        people,
        _per_image(stages.stage_medians(), paths),
        1000 * stages.round_median() / len(paths),
        _per_image(wholes.stage_medians(), paths),
    )


def _report(
    predictor: Predictor,
    amp: Amp,
    pictures: int,
    people: int,
    stages: dict[str, float],
    whole: float,
    wholes: dict[str, float],
) -> Report:
    alone = wholes[ALONE]
    return Report(
        title=f"predict: {pictures} images, {predictor.height} pixels high, scales "
        f"{' '.join(map(str, predictor.scales))}, {'with' if predictor.flip else 'no'} flip, amp {amp}, "
        f"batches of up to {predictor.batch_size} in the stream",
        header=("stage", "ms/picture", "of the whole", "of the network"),
        rows=[
            *(
                (stage, time, percent(time, whole), percent(time, stages["network"]))
                for stage, time in [*stages.items(), ("whole, one by one", whole)]
            ),
            *((name, time, None, percent(time, alone)) for name, time in wholes.items()),
        ],
        numbers={
            "stage_ms": stages,
            "whole_ms": whole,
            "pictures_per_s": 1000 / whole,
            "network_ms": stages["network"],
            "whole_over_network": whole / stages["network"],
            "stream_ms": wholes[STREAM],
            "stream_pictures_per_s": 1000 / wholes[STREAM],
            "alone_ms": alone,
            "stream_over_alone": wholes[STREAM] / alone,
            "trained_ms": wholes.get(TRAINED),
            "amp": amp,
            "pictures": pictures,
            "people": people,
        },
        notes=[
            f"{people} people found; in a stream, that is while images are read, prepared and decoded on other "
            f"threads, the whole takes {wholes[STREAM] / alone:.2f} times the network alone"
        ]
        + ([] if people else ["decoding and drawing take longer where there are people to find"]),
    )


def predict_one(predictor: Predictor, path: Path, watch: Stopwatch) -> int:
    """Take one image through all stages; the number of people in it."""
    watch.skip()
    image = read_image(path)
    watch.lap("read")
    people = predictor(image)
    watch.lap("decode")
    draw_people(image, people)
    watch.lap("draw")
    return len(people)


def _run_alone(network: nn.Module, shapes: Sequence[torch.Size], runtime: Runtime, layout: torch.memory_format) -> None:
    """Run a network on grey inputs of these shapes."""
    with torch.inference_mode():
        for shape in shapes:
            network.heatmaps(torch.full(shape, 0.5, device=runtime.device).contiguous(memory_format=layout))


def _per_image(seconds: dict[str, float], paths: Sequence[Path]) -> dict[str, float]:
    """Milliseconds."""
    return {name: 1000 * value / len(paths) for name, value in seconds.items()}
