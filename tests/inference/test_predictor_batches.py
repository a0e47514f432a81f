"""From frames to results: batches from a window, order, bounds and live frames."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from posenet.devices.ranks import Ranks
from posenet.inference import predictor as predictor_module
from posenet.inference.media.frames import IN_MEMORY, Frame, Source, split_into_blocks
from posenet.inference.predictor import RUNNING_BATCHES, Predictor
from posenet.settings import InferenceConfig
from tests.helpers.spot_networks import NOSE, SpotNetwork, spot_image

BATCH_SIZE = 4
SIZES = {"landscape": (64, 128), "portrait": (128, 64), "square": (64, 64)}


def frame_of(size: str, number: int = 0) -> Frame:
    height, width = SIZES[size]
    return Frame(IN_MEMORY, spot_image(height, width, (20 + number % 20, 20), (30, 50), 4))


def predict(frames: Generator[Frame, None, None]) -> tuple[list[int], list[float]]:
    """The sizes of the batches, and where the noses are."""
    network = SpotNetwork()
    predictor = Predictor(network, InferenceConfig(height=64, batch_size=BATCH_SIZE), min_score=0)
    results = list(predictor.find_people(frames))
    return [shape[0] for shape in network.shapes], [round(result[0].keypoints[NOSE, 0]) for result in results]


def test_images_of_one_size_run_together_although_others_are_between_them() -> None:
    sizes = ["landscape", "portrait", "landscape", "square"] * 16
    batches, noses = predict(frame_of(size, number) for number, size in enumerate(sizes))
    assert batches == [BATCH_SIZE] * 16
    assert noses == [20 + number % 20 for number in range(64)]


@pytest.mark.parametrize("name, bound", [("WINDOW_BYTES", 3 * 64 * 128 * 3), ("WINDOW_BATCHES", 1)])
def test_images_wait_for_others_within_bounds(name: str, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor_module, name, bound)
    sizes = ["landscape", "portrait", "square"] * 6
    batches, noses = predict(frame_of(size, number) for number, size in enumerate(sizes))
    assert max(batches) < BATCH_SIZE and sum(batches) == len(noses) == 18


def test_a_live_frame_is_predicted_before_the_next_one_is_read() -> None:
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=64, batch_size=BATCH_SIZE), min_score=0)
    seen: list[int] = []

    def frames() -> Generator[Frame, None, None]:
        yield frame_of("square")  # waits for others
        for number in range(5):
            assert not number or len(seen) == number + 1
            yield Frame(IN_MEMORY, frame_of("square").image, number, number / 10, is_live=True)

    for result in predictor.find_people(frames()):
        seen.append(len(result))
    assert seen == [1] * 6


def test_closing_the_results_drops_the_batches_that_the_network_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full, is_closing = threading.Event(), threading.Event()

    def frames() -> Generator[Frame, None, None]:
        for number in range(20):
            if number == RUNNING_BATCHES:
                is_full.set()
            yield frame_of("square")

    class WaitingNetwork(SpotNetwork):
        """Computes the first image when others wait, and the next one when the threads are told to end."""

        def heatmaps(self, images: torch.Tensor) -> torch.Tensor:
            (is_closing if self.shapes else is_full).wait()
            return super().heatmaps(images)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_closing.set()
            super().shutdown(wait)

    monkeypatch.setattr(predictor_module, "ThreadPoolExecutor", Pool)
    network = WaitingNetwork()
    predictor = Predictor(network, InferenceConfig(height=64, batch_size=1), min_score=0)
    results = predictor.find_people(frames())
    assert len(next(results)) == 1
    results.close()
    assert len(network.shapes) <= 2


@pytest.mark.parametrize("world_size", [1, 2, 3, 20])
def test_blocks_are_batches_or_videos_and_shares_join_to_the_whole(world_size: int) -> None:
    kinds = ["image"] * 5 + ["video", "image", "image", "camera"] + ["image"] * 4
    sources = [Source(kind, Path(str(index))) for index, kind in enumerate(kinds)]  # type: ignore[arg-type]
    blocks = split_into_blocks(sources, 4)
    names = [[int(source.name.removeprefix("camera ")) for source in block] for block in blocks]
    assert names == [[0, 1, 2, 3], [4], [5], [6, 7], [8], [9, 10, 11, 12]]
    assert [source.block for block in blocks for source in block] == [0] * 4 + [1, 2, 3, 3, 4] + [5] * 4
    shares = []
    for rank in range(world_size):
        ranks = Ranks()
        ranks.rank, ranks.world_size = rank, world_size
        shares.append(ranks.share(blocks))
    assert sorted((block for part in shares for block in part), key=blocks.index) == blocks
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
