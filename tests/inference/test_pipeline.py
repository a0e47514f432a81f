"""The pipeline from frames to results: batches from a window, order, bounds and live frames."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from posenet.devices.ranks import Ranks
from posenet.inference import pipeline
from posenet.inference.media.sources import IN_MEMORY, Frame, Source
from posenet.inference.pipeline import (
    MAX_BLOCK_BATCHES,
    RUNNING_BATCHES,
    WINDOW_BATCHES,
    predict_frames,
    split_into_blocks,
)
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.settings import InferenceConfig
from tests.helpers.spot_networks import NOSE, SpotNetwork, spot_image

BATCH_SIZE = 4
SIZES = {"landscape": (64, 128), "portrait": (128, 64), "square": (64, 64)}


def frame_of(size: str, number: int = 0) -> Frame:
    height, width = SIZES[size]
    return Frame(IN_MEMORY, spot_image(height, width, (20 + number % 20, 20), (30, 50), 4))


def predict(frames: Iterator[Frame]) -> tuple[list[int], list[float]]:
    """The sizes of the batches, and where the noses are."""
    network = SpotNetwork()
    predictor = Predictor(network, InferenceConfig(height=64, batch_size=BATCH_SIZE), min_score=0)
    results = list(predict_frames(predictor, frames))
    return [shape[0] for shape in network.shapes], [round(result[0].keypoints[NOSE, 0]) for result in results]


def test_images_of_one_size_run_together_although_others_are_between_them() -> None:
    sizes = ["landscape", "portrait", "landscape", "square"] * 16
    batches, noses = predict(frame_of(size, number) for number, size in enumerate(sizes))
    assert batches == [BATCH_SIZE] * 16
    assert noses == [20 + number % 20 for number in range(64)]


class CountingPredictor(Predictor):
    """Counts the images of each batch, and computes nothing."""

    def __init__(self) -> None:
        super().__init__(SpotNetwork(), InferenceConfig(batch_size=8))
        self.batch_sizes: list[int] = []

    def prepare_inputs(self, images: Sequence[np.ndarray]) -> Any:
        return images

    def start_network(self, batch: Any) -> Any:
        self.batch_sizes.append(len(batch))
        return SimpleNamespace(wait=lambda: None)

    def decode_batch(self, pending: Any, maps: Any, frames: Sequence[Frame]) -> list[Result]:
        return [Result(frame, []) for frame in frames]


@pytest.mark.parametrize("num_images, images_per_batch", [(1000, 4), (5000, 6)])
def test_the_batches_of_a_folder_with_the_sizes_of_coco_are_nearly_full(
    num_images: int, images_per_batch: float
) -> None:
    """As many images of each size as among 205 of COCO; sizes that few have are joined. With this height, 10 differ."""
    counts = {(480, 640): 54, (640, 480): 47, (427, 640): 44, (426, 640): 36, (640, 640): 7, (640, 512): 4}
    counts |= {(400, 500): 3, (579, 640): 3, (361, 640): 3, (383, 640): 2, (315, 640): 2}
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(counts), num_images, p=np.array([*counts.values()]) / sum(counts.values()))
    images = [np.broadcast_to(np.uint8(0), (*size, 3)) for size in counts]
    blocks = split_into_blocks([Source("image", Path(f"{number}.jpg")) for number in range(num_images)], 8)
    frames = (Frame(source, images[index]) for source, index in zip(itertools.chain(*blocks), chosen))
    predictor = CountingPredictor()
    assert sum(1 for _ in predict_frames(predictor, frames)) == num_images == sum(predictor.batch_sizes)
    assert num_images / len(predictor.batch_sizes) > images_per_batch


def test_a_rare_image_waits_no_longer_than_the_window() -> None:
    batches, _ = predict(frame_of("landscape" if number else "portrait") for number in range(3 * 64))
    before = (WINDOW_BATCHES * BATCH_SIZE - 1) // BATCH_SIZE
    assert batches[before] == 1 and sum(batches) == 3 * 64 and batches.count(BATCH_SIZE) == 47


def test_large_images_wait_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WINDOW_BYTES", 3 * 64 * 128 * 3)
    sizes = ["landscape", "portrait", "square"] * 6
    batches, noses = predict(frame_of(size, number) for number, size in enumerate(sizes))
    assert max(batches) < BATCH_SIZE and sum(batches) == len(noses) == 18


def test_a_live_frame_is_predicted_before_the_next_one_is_read() -> None:
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=64, batch_size=BATCH_SIZE), min_score=0)
    seen: list[int] = []

    def frames() -> Iterator[Frame]:
        yield frame_of("square")  # waits for others
        for number in range(5):
            assert not number or len(seen) == number + 1
            yield Frame(IN_MEMORY, frame_of("square").image, number, number / 10, is_live=True)

    for result in predict_frames(predictor, frames()):
        seen.append(len(result))
    assert seen == [1] * 6


def test_the_time_of_each_stage_is_measured_and_counts_once_while_several_threads_are_in_it() -> None:
    class SlowPredictor(Predictor):
        def decode_batch(self, *arguments: Any) -> list[Result]:
            time.sleep(0.05)
            return super().decode_batch(*arguments)

    predictor = SlowPredictor(SpotNetwork(), InferenceConfig(height=64, batch_size=1), min_score=0)
    busy: dict[str, float] = {}
    start = time.perf_counter()
    assert len(list(predict_frames(predictor, (frame_of("square") for _ in range(16)), busy))) == 16
    assert set(busy) == {"reading", "resizing", "network", "decoding"} and all(value > 0 for value in busy.values())
    assert busy["decoding"] > 0.05 and max(busy.values()) <= time.perf_counter() - start


def test_closing_the_results_drops_the_batches_that_the_network_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full, is_closing = threading.Event(), threading.Event()

    def frames() -> Iterator[Frame]:
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

    monkeypatch.setattr(pipeline, "ThreadPoolExecutor", Pool)
    network = WaitingNetwork()
    predictor = Predictor(network, InferenceConfig(height=64, batch_size=1), min_score=0)
    results = predict_frames(predictor, frames())
    assert len(next(results)) == 1
    results.close()
    assert len(network.shapes) <= 2


@pytest.mark.parametrize("num_images", [1000, 20_000])
@pytest.mark.parametrize("world_size", [2, 16])
def test_processes_get_equal_shares_of_images(num_images: int, world_size: int) -> None:
    blocks = split_into_blocks([Source("image", Path(f"{number}.jpg")) for number in range(num_images)], 8)
    assert max(map(len, blocks)) <= 8 * MAX_BLOCK_BATCHES
    ranks = Ranks()
    ranks.world_size = world_size
    for ranks.rank in range(world_size):
        assert abs(sum(map(len, ranks.share(blocks))) - num_images / world_size) <= 8


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
    assert [block for part in shares for block in part] == blocks
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
