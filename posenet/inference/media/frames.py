"""From sources to frames, and from frames to people: ``read_frames`` and ``predict_frames``."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from posenet.background import map_in_background
from posenet.downloading import download_image, fetch_video
from posenet.errors import ConfigError, DataError
from posenet.images import decode_image, read_image
from posenet.inference.media.live import Camera, LiveReader
from posenet.inference.media.reader import FrameSelection, VideoReader
from posenet.inference.media.series import Animation, NumberedImages
from posenet.inference.media.sources import Frame, Source, find_sources, is_numbered_pattern
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shares import batched

READ_AHEAD = 32
"""Number of image files that are read before they are requested."""
READ_THREADS = 4
"""Number of threads that read image files."""


class FramePeople(NamedTuple):
    """A frame and its people."""

    frame: Frame
    people: list[Person]
    """Empty for a frame that could not be read."""


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
    for may_be_image, group in itertools.groupby(sources, lambda source: source.kind in ("image", "animation")):
        if not may_be_image:
            for source in group:
                yield from _read_video(source, selection, stop_requested)
            continue
        with contextlib.closing(
            map_in_background(_read_image, group, workers=READ_THREADS, ahead=READ_AHEAD)
        ) as images:
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
            reader = _open_video(source, stack)
        except DataError as error:
            yield Frame(source, error=error)
            return
        stack.enter_context(contextlib.closing(reader))
        if isinstance(reader, LiveReader):
            yield from reader.frames(selection, stop_requested)
        else:
            yield from reader.frames(selection)


def _open_video(source: Source, stack: contextlib.ExitStack) -> VideoReader | LiveReader:
    """Open a video, a stream or a camera. ``stack`` closes what the reader needs besides."""
    if source.kind == "camera":
        return LiveReader(Camera(source))
    if source.path is not None and is_numbered_pattern(source.path):
        return NumberedImages(source, source.path)
    require_pyav()
    from posenet.inference.media.video import PyAVReader

    if source.path is not None:
        return PyAVReader(source, source.path)
    assert source.url is not None
    url = source.url
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="posenet-")))
    video = fetch_video(url, folder)
    reader = PyAVReader(source, video.copy or url)
    if video.is_file or reader.length:
        return reader
    return LiveReader(reader, reopen=lambda: PyAVReader(source, url))


def predict_frames(
    predictor: Predictor, frames: Iterable[Frame], block_of: Mapping[Source, int] = MappingProxyType({})
) -> Generator[FramePeople, None, None]:
    """Find the people in frames, in order; only a few frames are in memory at a time.

    Images that follow each other run together in batches, and so do frames of one video. Frames of live sources run one
    by one: a frame that waits for the next one would be out of date.

    Args:
        block_of: the block of each source; only images of the same block run together. See ``split_into_blocks``.
    """
    with contextlib.closing(_as_generator(frames)) as stream:
        for is_live, group in itertools.groupby(stream, lambda frame: frame.is_live):
            if is_live:
                for frame in group:
                    yield FramePeople(frame, [] if frame.error else predictor(frame.image))
            else:
                yield from _predict_in_batches(predictor, group, block_of)


def _predict_in_batches(
    predictor: Predictor, frames: Iterable[Frame], block_of: Mapping[Source, int]
) -> Iterator[FramePeople]:
    """Predict frames in batches. While the network runs, other frames are read, prepared and decoded."""
    pending: deque[Frame] = deque()

    def readable_images(batch: Iterable[Frame]) -> Iterator[np.ndarray]:
        for frame in batch:
            pending.append(frame)
            if not frame.error:
                yield frame.image

    batches = (
        readable_images(batch)
        for _, run in itertools.groupby(frames, lambda frame: (block_of.get(frame.source), _video_of(frame)))
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


def _video_of(frame: Frame) -> Source | None:
    """The video that a frame belongs to; None for an image."""
    is_image = frame.number is None and frame.source.kind in ("image", "animation")
    return None if is_image else frame.source


def _as_generator(frames: Iterable[Frame]) -> Generator[Frame, None, None]:
    yield from frames
