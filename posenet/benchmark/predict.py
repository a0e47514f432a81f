"""How long a picture takes from file to drawing, stage by stage, against the network alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn
from tqdm import tqdm

from posenet.benchmark.report import Report, share
from posenet.benchmark.timing import Stopwatch
from posenet.inference.draw import draw_people
from posenet.inference.images import read_image
from posenet.inference.predictor import Predictor
from posenet.runtime import Runtime


class WatchedNetwork(nn.Module):
    """A network that looks at the watch before and after it runs; the rest is the predictor's own work."""

    def __init__(self, network: nn.Module, watch: Stopwatch) -> None:
        super().__init__()
        self.network, self.watch = network, watch

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        self.watch.lap("prepare")
        maps = self.network.heatmaps(images)
        self.watch.lap("network")
        return maps


def measure_predict(network: nn.Module, make_predictor: Callable[[nn.Module], Predictor], paths: Sequence[Path],
                    runtime: Runtime, repeats: int) -> Report:
    """Read, predict and draw pictures one by one.

    Args:
        network: has ``heatmaps``.
        make_predictor: the predictor of a network.
        paths: pictures.

    Raises:
        DataError: a picture that cannot be read.
    """
    watch = Stopwatch(runtime.synchronize)
    predictor = make_predictor(WatchedNetwork(network, watch))
    people = 0
    for turn in tqdm(range(repeats + 1), desc="measure", leave=False, disable=None):
        watch.start_round()
        people = sum(predict_one(predictor, path, watch) for path in paths)
        if not turn:
            watch.clear()
    ms = {stage: 1000 * seconds / len(paths) for stage, seconds in watch.medians().items()}
    whole = 1000 * watch.total() / len(paths)
    return Report(
        title=f"predict: {len(paths)} pictures one by one, {predictor.height} pixels high, scales "
              f"{' '.join(map(str, predictor.scales))}, {'with' if predictor.flip else 'no'} flip, amp {predictor.amp}",
        header=("stage", "ms/picture", "of the whole", "of the network"),
        rows=[(stage, time, share(time, whole), share(time, ms["network"]))
              for stage, time in [*ms.items(), ("whole", whole)]],
        numbers={"stage_ms": ms, "whole_ms": whole, "pictures_per_s": 1000 / whole, "network_ms": ms["network"],
                 "whole_over_network": whole / ms["network"], "pictures": len(paths), "people": people},
        notes=[f"{people} people found; the whole takes {whole / ms['network']:.2f} times the network alone"]
        + ([] if people else ["decoding and drawing take longer where there are people to find"]),
    )


def predict_one(predictor: Predictor, path: Path, watch: Stopwatch) -> int:
    """Take one picture through all stages; the number of people in it."""
    watch.skip()
    image = read_image(path)
    watch.lap("read")
    people = predictor(image)
    watch.lap("decode")
    draw_people(image, people)
    watch.lap("draw")
    return len(people)
