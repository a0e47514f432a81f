"""From frames to results, each stage ahead of the next: read -> fill batches -> prepare -> network -> decode."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posenet.inference.media.frames import Frame, Source
from posenet.inference.result import Result
from posenet.threads import keep_failure

if TYPE_CHECKING:
    from posenet.inference.averaging import InputBatch
    from posenet.inference.predictor import Predictor

WINDOW_BATCHES = 32
"""A batch is filled from a window of images that follow each other: at most from this many times its size."""
WINDOW_BYTES = 96 * 2**20
"""Largest memory of the images in that window."""
RUNNING_BATCHES = 6
"""Batches that are prepared, computed and decoded at the same time."""
RUNNING_BYTES = 48 * 2**20
"""Fewer, if their images take more memory together; a single batch may take more."""
THREADS = 4
"""Threads that prepare batches, and as many that decode them."""
NUM_BLOCKS = 16
"""The number of blocks is a multiple of this, so that 2, 4, 8 and 16 processes get equal shares."""
MAX_BLOCK_BATCHES = 64
"""Batches in a block at most."""


def split_into_blocks(sources: Sequence[Source], batch_size: int) -> list[list[Source]]:
    """Split sources into numbered blocks whose images may run together: some batches of images, or one video.

    If every process of an evaluation predicts whole blocks, no batch contains images of two, so that the people do not
    depend on their number. Long blocks fill the batches better.
    """
    blocks: list[list[Source]] = []
    for is_image, group in itertools.groupby(sources, lambda source: source.kind == "image"):
        members = list(group)
        num_batches = math.ceil(len(members) / batch_size)
        num_blocks = NUM_BLOCKS * math.ceil(num_batches / (NUM_BLOCKS * MAX_BLOCK_BATCHES))
        ends = [num_batches * number // num_blocks * batch_size for number in range(num_blocks + 1)]
        parts = [members[start:end] for start, end in itertools.pairwise(ends)] if is_image else [[m] for m in members]
        blocks += filter(None, parts)
    return [[dataclasses.replace(source, block=number) for source in block] for number, block in enumerate(blocks)]


class Batch(NamedTuple):
    """Frames that run together, and their places in the order of all frames."""

    places: list[int]
    frames: list[Frame]
    bytes_before: int = 0
    """Bytes of all frames that were read before the first one."""

    @property
    def size(self) -> int:
        """Bytes of the images."""
        return sum(frame.image.nbytes for frame in self.frames)


def predict_frames(predictor: Predictor, frames: Iterable[Frame]) -> Generator[Result, None, None]:
    """Find the people in frames, in order; nobody in a frame that could not be read.

    Frames whose network inputs have the same size run together, also if others are between them. So there is a window
    of frames that are read, but not predicted, which is bounded in number and in bytes. A live frame is predicted
    before the next one is read: a frame that waits would be out of date. The last bits of the result for a frame may
    depend on those that it runs together with, but batches never reach from one block of sources into the next.

    The next frame is taken on the caller's thread; ``read_frames`` reads ahead on threads of its own. An error in
    reading frames is raised after the results of those before.
    """
    early: dict[int, Result] = {}
    next_place = 0
    with (
        contextlib.closing(_fill_batches(predictor, frames)) as batches,
        contextlib.closing(_run_batches(predictor, batches)) as results,
    ):
        for place, result in results:
            early[place] = result
            while next_place in early:
                yield early.pop(next_place)
                next_place += 1


def _fill_batches(predictor: Predictor, frames: Iterable[Frame]) -> Generator[Batch, None, None]:
    """Batches of frames with network inputs of the same size. One that could not be read, or is live, is alone."""
    batch_size = predictor.settings.batch_size
    waiting: dict[object, Batch] = {}  # by the sizes of their network inputs; the batch that waits longest comes first
    bytes_read = 0
    group: object = None  # the block of images, or the video, whose frames run together
    failures: list[Exception] = []

    def longest_waiting() -> Batch:
        return next(iter(waiting.values()))

    def take(number: int) -> list[Batch]:
        return [waiting.pop(key) for key in [*waiting][:number]]

    for place, frame in enumerate(keep_failure(frames, failures)):
        if waiting and place - longest_waiting().places[0] >= WINDOW_BATCHES * batch_size:
            yield from take(1)
        if frame.error is not None:
            yield Batch([place], [frame])
            continue
        last_group = group
        group = object() if frame.is_live else (frame.source.block, None if frame.number is None else frame.source)
        if group != last_group:
            yield from take(len(waiting))
        size = frame.image.nbytes
        while waiting and bytes_read + size - longest_waiting().bytes_before > WINDOW_BYTES:
            yield from take(1)
        key = predictor.input_sizes((frame.image.shape[0], frame.image.shape[1]))
        batch = waiting.setdefault(key, Batch([], [], bytes_read))
        batch.places.append(place)
        batch.frames.append(frame)
        bytes_read += size
        if frame.is_live or len(batch.frames) == batch_size:
            yield waiting.pop(key)
    yield from take(len(waiting))
    for failure in failures:
        raise failure


def _run_batches(predictor: Predictor, batches: Iterable[Batch]) -> Generator[tuple[int, Result], None, None]:
    """Results with the places of their frames, in the order of the batches."""
    failures: list[Exception] = []
    running: deque[tuple[Batch, Future[list[Result]]]] = deque()

    # Each stage waits for the one before. The batches pass every stage in their order.

    def compute(prepared: Future[InputBatch]) -> Callable[[], list[np.ndarray]]:
        return predictor.start_network(prepared.result())

    def decode(started: Future[Callable[[], list[np.ndarray]]], frames: Sequence[Frame]) -> list[Result]:
        wait = started.result()
        return predictor.decode_batch(wait(), frames)

    def finish_first() -> Iterator[tuple[int, Result]]:
        batch, results = running.popleft()
        yield from zip(batch.places, results.result())

    def is_room_for(batch: Batch) -> bool:
        total = sum(other.size for other, _ in running) + batch.size
        return not running or (len(running) < RUNNING_BATCHES and total <= RUNNING_BYTES)

    # At an early end, the last context drops its work first. Threads that decode wait for the network: if they were
    # last, they would wait for batches whose results nobody takes.
    with _threads(THREADS) as decoding, _threads(THREADS) as preparing, _threads(1) as computing:
        for batch in keep_failure(batches, failures):
            [first, *_] = batch.frames
            if first.error is not None:
                yield batch.places[0], Result(first, [], predictor.skeleton)
            else:
                while not is_room_for(batch):
                    yield from finish_first()
                inputs = preparing.submit(predictor.prepare_inputs, [frame.image for frame in batch.frames])
                maps = computing.submit(compute, inputs)
                running.append((batch, decoding.submit(decode, maps, batch.frames)))
            while running and (first.is_live or running[0][1].done()):
                yield from finish_first()
        while running:
            yield from finish_first()
        for failure in failures:
            raise failure


@contextlib.contextmanager
def _threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that drop what they have not begun when the context ends."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
