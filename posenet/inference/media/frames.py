"""From sources to frames, and from frames to people: ``read_frames``, ``predict_frames`` and ``track_people``."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.downloading import fetch_video
from posenet.errors import ConfigError, DataError
from posenet.images import decode_image, download_image, read_image
from posenet.inference.media.live import Camera, read_live
from posenet.inference.media.reader import Animation, FrameSelection, NumberedImages, VideoReader
from posenet.inference.media.sources import Frame, Source, find_sources
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shares import batched
from posenet.inference.tracking.tracker import Tracker
from posenet.settings import TrackingConfig
from posenet.threads import map_in_threads

READ_AHEAD = 32
"""Number of image files that are read before they are requested."""
READ_THREADS = 4
"""Number of threads that read image files."""


class FramePeople(NamedTuple):
    """A frame and its people; nobody in a frame that could not be read."""

    frame: Frame
    people: list[Person]


def read_frames(
    inputs: str | Path | Iterable[str | Path | Source],
    *,
    start: float = 0.0,
    duration: float = math.inf,
    stride: int = 1,
    recursive: bool = False,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[Frame, None, None]:
    """Read the frames of images, folders, videos, streams and cameras, one input after the other.

    What cannot be read is a frame with an ``error``. Only a few frames are in memory at a time.

    Args:
        inputs: one or several: files, folders, patterns, addresses and numbers of cameras, as ``posenet predict`` takes
            them; or what ``find_sources`` has found.
        start: seconds after the first frame of every video; earlier frames are skipped.
        duration: seconds after ``start``; later frames are not read.
        stride: every how many frames of a video one is read.
        recursive: search subfolders of folders too.
        stop_requested: checked while a live source delivers no image; true ends its frames.

    Raises:
        DataError: an input does not exist, a folder has no images or videos, or a pattern has no match.
        ConfigError: a video needs PyAV, which is not installed.
    """
    items = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    sources = [
        source
        for item in items
        for source in ([item] if isinstance(item, Source) else find_sources([item], recursive=recursive))
    ]
    selection = FrameSelection(start, duration, stride)
    for may_be_image, group in itertools.groupby(sources, lambda source: source.may_be_image):
        if not may_be_image:
            for source in group:
                yield from _read_video(source, selection, stop_requested)
            continue
        with contextlib.closing(map_in_threads(_read_image, group, workers=READ_THREADS, ahead=READ_AHEAD)) as images:
            for item in images:
                if isinstance(item, Frame):
                    yield item
                else:
                    with contextlib.closing(item):
                        yield from item.frames(selection)


def require_pyav() -> None:
    """Raise ``ConfigError`` if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError("videos need the package PyAV, which brings its own FFmpeg: pip install 'simplepose[video]'")


def _read_image(source: Source) -> Frame | Animation:
    """An image, or the reader of a file with several images."""
    try:
        if source.data:
            return Frame(source, decode_image(np.frombuffer(source.data, np.uint8)))
        if source.url is not None:
            return Frame(source, download_image(source.url))
        assert source.path is not None
        animation = Animation.open(source, source.path) if source.kind == "animation" else None
        return animation or Frame(source, read_image(source.path))
    except DataError as error:
        return Frame(source, error=error)


def _read_video(source: Source, selection: FrameSelection, stop_requested: Callable[[], bool]) -> Iterator[Frame]:
    """The frames of a video, a stream or a camera."""
    with contextlib.ExitStack() as stack:
        try:
            frames = _open_video(source, selection, stop_requested, stack)
        except DataError as error:
            yield Frame(source, error=error)
            return
        yield from frames


def _open_video(
    source: Source, selection: FrameSelection, stop_requested: Callable[[], bool], stack: contextlib.ExitStack
) -> Iterator[Frame]:
    """Open a video, a stream or a camera, which ``stack`` closes; return its frames."""
    if source.kind == "camera":
        return read_live(Camera(source), selection, stop_requested)
    reader: VideoReader
    if source.kind == "numbered":
        reader = NumberedImages(source)
    else:
        require_pyav()
        from posenet.inference.media.video import PyAVReader

        location: str | Path
        if source.url is None:
            is_file, location = True, Path(str(source.location))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="posenet-")))
            is_file, copy = fetch_video(source.url, folder, stop_requested)
            location = copy or source.url
        reader = PyAVReader(source, location)
        if not is_file and not reader.length:
            return read_live(reader, selection, stop_requested, reopen=lambda: PyAVReader(source, location))
    return stack.enter_context(contextlib.closing(reader)).frames(selection)


def predict_frames(predictor: Predictor, frames: Iterable[Frame]) -> Generator[FramePeople, None, None]:
    """Find the people in frames, in order; only a few frames are in memory at a time.

    Images that follow each other run together in batches, and so do frames of one video. Frames of live sources run one
    by one: a frame that waits for the next one would be out of date.
    """
    with contextlib.closing(_as_generator(frames)) as stream:
        for is_live, group in itertools.groupby(stream, lambda frame: frame.is_live):
            if is_live:
                for frame in group:
                    yield FramePeople(frame, [] if frame.error else predictor(frame.image))
            else:
                yield from _predict_in_batches(predictor, group)


def _predict_in_batches(predictor: Predictor, frames: Iterable[Frame]) -> Iterator[FramePeople]:
    """Predict frames in batches. While the network runs, other frames are read, prepared and decoded."""
    pending: deque[Frame] = deque()

    def readable_images(batch: Iterable[Frame]) -> Iterator[np.ndarray]:
        for frame in batch:
            pending.append(frame)
            if not frame.error:
                yield frame.image

    batches = (
        readable_images(batch)
        for _, run in itertools.groupby(frames, _belongs_to)
        for batch in batched(run, predictor.settings.batch_size)
    )
    with contextlib.closing(predictor.stream_groups(batches)) as results:
        for people in results:
            # The result belongs to the first readable frame; unreadable frames before it have no people.
            while pending[0].error:
                yield FramePeople(pending.popleft(), [])
            yield FramePeople(pending.popleft(), people)
    for frame in pending:
        yield FramePeople(frame, [])


def _belongs_to(frame: Frame) -> tuple[int, Source | None]:
    """The block of a frame, and the video; None for an image."""
    is_image = frame.number is None and frame.source.may_be_image
    return frame.source.block, None if is_image else frame.source


def _as_generator(frames: Iterable[Frame]) -> Generator[Frame, None, None]:
    yield from frames


def track_people(predictions: Iterable[FramePeople], settings: TrackingConfig) -> Iterator[FramePeople]:
    """Give the people who are recognised in each video an ``id``, which counts from 1; people of images have none."""
    for _, predictions_of_source in itertools.groupby(predictions, lambda prediction: prediction.frame.source):
        tracker = Tracker(settings)
        seconds = -math.inf
        for frame, people in predictions_of_source:
            if frame.number is not None:
                seconds = max(seconds, frame.seconds)  # the clock of a damaged stream may jump back
                people = tracker.update(people, seconds)
            yield FramePeople(frame, people)
