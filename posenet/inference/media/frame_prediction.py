"""Prediction of the people in a stream of frames."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from posenet.inference.media.sources import Frame, Source, UnreadableFrame, read_frames
from posenet.inference.media.video import ALL_FRAMES, FrameSelection
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor


class FramePrediction(NamedTuple):
    """A frame and its people."""

    frame: Frame | UnreadableFrame
    people: list[Person]
    """Empty for an unreadable frame."""


def predict_frames(
    predictor: Predictor,
    sources: Iterable[Source],
    selection: FrameSelection = ALL_FRAMES,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[FramePrediction, None, None]:
    """Predict the selected frames of all sources, in order; only a few frames are in memory at a time."""
    with contextlib.closing(read_frames(sources, selection, stop_requested)) as frames:
        for is_live, group in itertools.groupby(frames, lambda frame: frame.is_live):
            predict = _predict_one_by_one if is_live else _predict_stream
            yield from predict(predictor, group)


def _predict_one_by_one(predictor: Predictor, frames: Iterable[Frame | UnreadableFrame]) -> Iterator[FramePrediction]:
    """Predict every frame as it arrives. For live sources: a frame that waits for the next one would be out of date."""
    for frame in frames:
        yield FramePrediction(frame, predictor(frame.image) if isinstance(frame, Frame) else [])


def _predict_stream(predictor: Predictor, frames: Iterable[Frame | UnreadableFrame]) -> Iterator[FramePrediction]:
    """Predict frames in batches. While the network runs, other frames are read, prepared and decoded."""
    pending: deque[Frame | UnreadableFrame] = deque()

    def readable_images() -> Iterator[np.ndarray]:
        for frame in frames:
            pending.append(frame)
            if isinstance(frame, Frame):
                yield frame.image

    with contextlib.closing(predictor.stream(readable_images())) as results:
        for people in results:
            # The result belongs to the first readable frame; unreadable frames before it have no people.
            while isinstance(pending[0], UnreadableFrame):
                yield FramePrediction(pending.popleft(), [])
            yield FramePrediction(pending.popleft(), people)
    for frame in pending:
        yield FramePrediction(frame, [])
