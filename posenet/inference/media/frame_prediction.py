"""Prediction of the people in a stream of frames, and in units of work."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from posenet.errors import DataError
from posenet.inference.media.sources import MIN_READ_AHEAD, Frame, Source, UnreadableFrame, read_frames
from posenet.inference.media.units import Unit, split_into_units
from posenet.inference.media.video import ALL_FRAMES, FrameSelection
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shared_work import ItemFormat, UnitItem
from posenet.skeleton import Skeleton


class FramePrediction(NamedTuple):
    """A frame and its people."""

    frame: Frame | UnreadableFrame
    people: list[Person]
    """Empty for an unreadable frame."""
    source_index: int
    """Index of the frame's source among all sources."""


class _PlacedFrame(NamedTuple):
    """A frame and where it belongs."""

    frame: Frame | UnreadableFrame
    source_index: int
    group: tuple[int, int]
    """Frames that may run together have the same group."""


def predict_frames(
    predictor: Predictor,
    sources: Sequence[Source],
    selection: FrameSelection = ALL_FRAMES,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[FramePrediction, None, None]:
    """Predict the selected frames of all sources, in order; only a few frames are in memory at a time."""
    units = split_into_units(sources, predictor.settings.batch_size)
    with contextlib.closing(
        predict_units(predictor, sources, units, range(len(units)), selection, stop_requested)
    ) as items:
        for _, prediction in items:
            if prediction is not None:
                yield prediction


def predict_units(
    predictor: Predictor,
    sources: Sequence[Source],
    units: Sequence[Unit],
    numbers: Sequence[int],
    selection: FrameSelection = ALL_FRAMES,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[UnitItem[FramePrediction], None, None]:
    """Predict the selected frames of some units, in order; only a few frames are in memory at a time.

    Images of a unit run together, and frames of a video in groups of the batch size.
    """
    remaining = deque(numbers)
    placed = _place_frames(sources, units, numbers, predictor.settings.batch_size, selection, stop_requested)
    with contextlib.closing(placed):
        for is_live, frames in itertools.groupby(placed, lambda frame: frame.frame.is_live):
            predict = _predict_one_by_one if is_live else _predict_stream
            for prediction in predict(predictor, frames):
                # A frame of a later unit completes the units before it.
                while prediction.source_index not in units[remaining[0]]:
                    yield UnitItem(remaining.popleft(), None)
                yield UnitItem(remaining[0], prediction)
                is_image = sources[prediction.source_index].kind == "image"
                if is_image and prediction.source_index == units[remaining[0]][-1]:
                    yield UnitItem(remaining.popleft(), None)
    if not stop_requested():
        for number in remaining:
            yield UnitItem(number, None)


def _place_frames(
    sources: Sequence[Source],
    units: Sequence[Unit],
    numbers: Iterable[int],
    group_size: int,
    selection: FrameSelection,
    stop_requested: Callable[[], bool],
) -> Generator[_PlacedFrame, None, None]:
    """The frames of some units with their places."""
    places = ((number, index) for number in numbers for index in units[number])
    read = (sources[index] for number in numbers for index in units[number])
    number, index = -1, -1
    source: Source | None = None
    num_frames = 0
    # While the network runs on a group, all images of the next two are read.
    ahead = max(MIN_READ_AHEAD, 2 * group_size)
    with contextlib.closing(read_frames(read, selection, stop_requested, ahead)) as frames:
        for frame in frames:
            if frame.source is not source:
                source = frame.source
                num_frames = 0
                # A video may have no selected frame at all.
                number, index = next((n, i) for n, i in places if sources[i] is source)
            yield _PlacedFrame(frame, index, (number, num_frames // group_size))
            num_frames += 1


def _predict_one_by_one(predictor: Predictor, frames: Iterable[_PlacedFrame]) -> Iterator[FramePrediction]:
    """Predict every frame as it arrives. For live sources: a frame that waits for the next one would be out of date."""
    for frame, source_index, _ in frames:
        people = predictor(frame.image) if isinstance(frame, Frame) else []
        yield FramePrediction(frame, people, source_index)


def _predict_stream(predictor: Predictor, frames: Iterable[_PlacedFrame]) -> Iterator[FramePrediction]:
    """Predict frames in batches. While the network runs, other frames are read, prepared and decoded."""
    pending: deque[_PlacedFrame] = deque()

    def readable_images(group: Iterable[_PlacedFrame]) -> Iterator[np.ndarray]:
        for placed in group:
            pending.append(placed)
            if isinstance(placed.frame, Frame):
                yield placed.frame.image

    groups = (readable_images(group) for _, group in itertools.groupby(frames, lambda placed: placed.group))
    with contextlib.closing(predictor.stream_groups(groups)) as results:
        for people in results:
            # The result belongs to the first readable frame; unreadable frames before it have no people.
            while isinstance(pending[0].frame, UnreadableFrame):
                yield _without_people(pending.popleft())
            placed = pending.popleft()
            yield FramePrediction(placed.frame, people, placed.source_index)
    for placed in pending:
        yield _without_people(placed)


def _without_people(placed: _PlacedFrame) -> FramePrediction:
    return FramePrediction(placed.frame, [], placed.source_index)


def prediction_format(sources: Sequence[Source], skeleton: Skeleton) -> ItemFormat[FramePrediction]:
    """How predictions are stored for another process, exactly but without the pixels of their images."""

    def encode(prediction: FramePrediction) -> dict[str, Any]:
        frame, people, source_index = prediction
        if isinstance(frame, UnreadableFrame):
            return {"source": source_index, "error": str(frame.error)}
        return {
            "source": source_index,
            "number": frame.number,
            "seconds": frame.seconds,
            "size": frame.image.shape[:2],
            "people": [person.to_stored() for person in people],
        }

    def decode(stored: dict[str, Any]) -> FramePrediction:
        source_index = stored["source"]
        source = sources[source_index]
        if "error" in stored:
            return FramePrediction(UnreadableFrame(source, DataError(stored["error"])), [], source_index)
        people = [Person.from_stored(person, skeleton) for person in stored["people"]]
        without_pixels = np.broadcast_to(np.uint8(0), (*stored["size"], 3))
        frame = Frame(source, without_pixels, stored["number"], stored["seconds"])
        return FramePrediction(frame, people, source_index)

    return ItemFormat(encode, decode)
