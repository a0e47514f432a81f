"""From inputs of any kind to frames: ``read_frames``.

Pillow reads files of several images, PyAV videos and streams, OpenCV cameras. Of cameras and live streams always the
newest image is read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import itertools
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import cv2
import numpy as np
from PIL import Image

from posenet.downloading import download_bytes
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import (
    ChannelOrder,
    ImageInput,
    decode_reduced_image,
    image_errors,
    image_places,
    is_encoded,
    open_with_pillow,
    read_image,
    read_image_file,
    to_bgr,
)
from posenet.inference.media.sources import (
    DEFAULT_FRAME_RATE,
    IN_MEMORY,
    MAX_UNREADABLE_IN_A_ROW,
    Frame,
    FrameSelection,
    Source,
    find_sources,
    plausible_rate,
)
from posenet.messages import MAX_REASON, to_single_line
from posenet.threads import map_in_threads, read_ahead

if TYPE_CHECKING:
    from posenet.inference.media.video import PyAVReader

READ_AHEAD = 8
"""Number of image files or frames of a video that are read before they are requested."""
READ_THREADS = 4
"""Number of threads that read image files."""
SHORTEST_MS = 20
"""Images that state a shorter time, or none, are shown for 100 ms by browsers."""
REPLACED_MS = 100
RECONNECT_SECONDS = 60.0
"""For how long a lost stream is opened again and again."""
RETRY_SECONDS = 1.0
"""Pause before every attempt."""
STOP_CHECK_SECONDS = 0.2
"""How often a request to stop is looked for while no image of a live source arrives."""

_log = logging.getLogger(__name__)

Item = TypeVar("Item")
Read = TypeVar("Read")
FrameInput: TypeAlias = Source | ImageInput | int
"""What frames are read from: the name of something, as ``posenet predict`` takes it, the number of a camera, a source
that ``find_sources`` has found, or an image in memory."""


def read_frames(
    inputs: FrameInput | Iterable[FrameInput],
    channels: ChannelOrder = "bgr",
    *,
    start: float = 0.0,
    duration: float = math.inf,
    stride: int = 1,
    recursive: bool = False,
    stop_requested: Callable[[], bool] = lambda: False,
    reduction_of: Callable[[tuple[int, int]], int] | None = None,
) -> Generator[Frame, None, None]:
    """Read the frames of images, folders, videos, streams and cameras, one input after the other.

    What cannot be read is a frame with an ``error``, and so is an input of several that does not exist. Only a few
    frames are in memory at a time. An array may be overwritten when the next image is requested.

    Args:
        inputs: one or several; an iterable is read on the caller's thread, as its images are needed.
        channels: order of the colours of arrays.
        start: seconds after the first frame of every video; earlier frames are skipped.
        duration: seconds after ``start``; later frames are not read.
        stride: every how many frames of a video one is read.
        recursive: search subfolders of folders too.
        stop_requested: checked while a live source delivers no image; true ends its frames.
        reduction_of: how much smaller JPEG files are read; see ``decode_reduced_image``. None reads them whole.

    Raises:
        DataError: the only input does not exist, is a folder without images or videos, a pattern without a match, or
            no image.
        ConfigError: a video needs PyAV, which is not installed.
    """
    selection = FrameSelection(start=start, duration=duration, stride=stride)
    if is_single_input(inputs):
        found: Iterable[Source | Frame] = _find(cast(FrameInput, inputs), channels, recursive)
    else:
        found = _find_all(cast(Iterable[FrameInput], inputs), channels, recursive)
    for is_image, group in itertools.groupby(found, lambda item: isinstance(item, Source) and item.kind == "image"):
        if is_image:
            read = functools.partial(_read_image, reduction_of=reduction_of)
            yield from read_in_threads(read, cast(Iterator[Source], group))
            continue
        for item in group:
            if isinstance(item, Frame):
                yield item
            else:
                yield from _read_video(item, selection, stop_requested)


def is_single_input(inputs: object) -> bool:
    """Whether this is one input, possibly of a wrong type, instead of an iterable of several.

    An array of four dimensions has several images; one of bytes is an image file, and another one of a single
    dimension, or a column of a table, has names.
    """
    is_one = isinstance(inputs, (str, os.PathLike, int, Source, Image.Image)) or is_encoded(inputs)
    return is_one or getattr(inputs, "ndim", None) in (0, 2, 3) or not isinstance(inputs, Iterable)


def _find(item: FrameInput, channels: ChannelOrder, recursive: bool) -> list[Source] | list[Frame]:
    """The sources of one input, or the frame of an image in memory; ``DataError`` if there are none."""
    if isinstance(item, Source):
        return [item]
    if isinstance(item, (str, os.PathLike, int)) and not is_encoded(item):
        return find_sources([item], recursive=recursive)
    image = to_bgr(cast(ImageInput, item), channels)
    is_shared = isinstance(item, np.ndarray) and np.may_share_memory(image, item)
    return [Frame(IN_MEMORY, image.copy() if is_shared else image)]


def _find_all(items: Iterable[FrameInput], channels: ChannelOrder, recursive: bool) -> Iterator[Source | Frame]:
    """The sources and the frames of several inputs; a frame with an error for each that has none."""
    for item in items:
        try:
            yield from _find(item, channels, recursive)
        except Exception as error:
            is_name = isinstance(item, (str, os.PathLike)) and not is_encoded(item)
            yield _failed(Source("image", Path(cast(str, item))) if is_name else IN_MEMORY, error)


def _failed(source: Source, error: Exception) -> Frame:
    """The frame of an input whose reading has raised an error, of whatever library; that of a package is raised."""
    if isinstance(error, ConfigError):
        raise error
    text = to_single_line(str(error))
    if not isinstance(error, DataError):
        _log.debug("reading %s has failed", source.name, exc_info=error)
        reason = f"{type(error).__name__}: {text[:MAX_REASON]}"
        text = f"{source.name} cannot be read ({reason}); convert it, or leave it out"
    return Frame(source, error=DataError(text))


def read_in_threads(read: Callable[[Item], Read], items: Iterable[Item]) -> Generator[Read, None, None]:
    """``map(read, items)`` on several threads, ahead of the caller."""
    return map_in_threads(read, items, workers=READ_THREADS, ahead=READ_AHEAD)


def require_pyav() -> None:
    """Raise ``ConfigError`` if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise ConfigError("videos need the package PyAV, which brings its own FFmpeg: pip install 'simplepose[video]'")


def _read_image(source: Source, reduction_of: Callable[[tuple[int, int]], int] | None) -> Frame:
    try:
        if source.url is not None:
            return Frame(source, read_image(source.url))
        assert source.path is not None
        with image_errors(source.path):
            image, size = decode_reduced_image(read_image_file(source.path), reduction_of or (lambda size: 1))
        return Frame(source, image, whole_size=size)
    except Exception as error:
        return _failed(source, error)


def _read_video(source: Source, selection: FrameSelection, stop_requested: Callable[[], bool]) -> Iterator[Frame]:
    """The frames of an animation, a video, a stream or a camera; a last one with the error that ends them."""
    try:
        if source.kind == "camera":
            yield from _read_live(Camera(source), selection, stop_requested)
        elif source.kind == "animation":
            yield from read_ahead(_read_animation(source, selection), READ_AHEAD)
        else:
            require_pyav()
            from posenet.inference.media.video import PyAVReader

            reader = PyAVReader(source)
            if reader.is_live:
                yield from _read_live(reader, selection, stop_requested)
            else:
                with contextlib.closing(reader):
                    yield from read_ahead(reader.frames(selection), READ_AHEAD)
    except Exception as error:
        yield _failed(source, error)


def _read_animation(source: Source, selection: FrameSelection) -> Iterator[Frame]:
    """The selected images of a file."""
    data = read_input(str(source.path)) if source.url is None else download_bytes(source.url)
    image = open_with_pillow(io.BytesIO(data))
    if image is None:
        raise DataError(f"{source.name} is damaged: no image can be decoded; copy it or save it again")
    places = image_places(image)
    begin_ms = 0.0
    first_selected: int | None = None
    for number, place in enumerate(places):
        image.seek(place)
        image.load()  # only this reads the time in some formats
        seconds = begin_ms / 1000
        # Pages follow each other at the rate of a video.
        is_page = image.format == "TIFF"
        duration_ms = 1000 / DEFAULT_FRAME_RATE if is_page else float(image.info.get("duration") or 0)
        if duration_ms < SHORTEST_MS:
            duration_ms = REPLACED_MS
        begin_ms += duration_ms
        if seconds >= selection.start + selection.duration:
            return
        if seconds < selection.start:
            continue
        if first_selected is None:
            first_selected = number
        if (number - first_selected) % selection.stride == 0:
            expected = -(-(len(places) - number) // selection.stride)
            rate = 1000 / duration_ms / selection.stride
            yield Frame(source, to_bgr(image), number, seconds, rate, expected=expected)
    if first_selected is None:
        raise DataError(f"{source.name} has no image after {selection.start:g} s")


class Camera:
    """A camera, through OpenCV; ``DataError`` if there is none, or another program uses it."""

    aspect = 1.0  # of a pixel

    def __init__(self, source: Source) -> None:
        self.source = source
        self._capture = cv2.VideoCapture(source.location)  # a number or a device file
        if not self._capture.isOpened():
            raise DataError(f"{source.name} cannot be opened; connect it, and close other programs that use it")
        self.rate = plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))

    def decode(self) -> Iterator[float | None]:
        """Wait for frame after frame, whose times are unknown; like ``PyAVReader.decode``."""
        while self._capture.grab():
            yield math.nan

    def image(self) -> np.ndarray:
        """The last image, (H, W, 3) BGR uint8; an error if the camera has sent none."""
        return to_bgr(self._capture.retrieve()[1])

    def close(self) -> None:
        """Release the device."""
        self._capture.release()


def _read_live(
    reader: Camera | PyAVReader, selection: FrameSelection, stop_requested: Callable[[], bool]
) -> Iterator[Frame]:
    """Yield the newest image of a camera or a stream each time, until the selection ends, or it is lost; then an error.

    Images that arrive before the last was taken are dropped: the stride of the selection does not apply. A stream that
    is lost is opened again; a camera is not. The reader is closed at the end.
    """
    newest: queue.Queue[Frame] = queue.Queue(1)
    closing = threading.Event()
    thread = threading.Thread(target=_keep_newest, args=(reader, newest, closing), daemon=True)
    thread.start()
    try:
        while not stop_requested():
            has_ended = not thread.is_alive()
            try:
                frame = newest.get(timeout=STOP_CHECK_SECONDS)
            except queue.Empty:
                if has_ended:
                    yield Frame(reader.source, error=DataError(f"{reader.source.name} delivers no more images"))
                    return
                continue
            if frame.seconds >= selection.start + selection.duration:
                return
            if frame.seconds >= selection.start:
                yield frame
    finally:
        closing.set()
        thread.join()


def _keep_newest(reader: Camera | PyAVReader | None, newest: queue.Queue[Frame], closing: threading.Event) -> None:
    """Keep the newest image in a queue until ``closing`` is set or the source is lost.

    Images that are damaged are dropped like those that come too fast. After many in a row the source counts as lost.
    """
    begin: float | None = None
    numbers = itertools.count()
    while reader is not None:
        try:
            with contextlib.closing(reader):
                unreadable = 0
                for seconds_of_stream in reader.decode():
                    now = time.monotonic()
                    if closing.is_set():
                        return
                    image = None
                    with contextlib.suppress(Exception):
                        image = None if seconds_of_stream is None else reader.image()
                    if image is None:
                        unreadable += 1
                        if unreadable == MAX_UNREADABLE_IN_A_ROW:
                            break
                        continue
                    unreadable = 0
                    begin = now if begin is None else begin
                    about = next(numbers), now - begin, reader.rate, reader.aspect
                    with contextlib.suppress(queue.Empty):
                        newest.get_nowait()
                    newest.put(Frame(reader.source, image, *about, is_live=True))
        except Exception as error:  # of whatever library: the source is lost
            _log.debug("reading %s has failed", reader.source.name, exc_info=error)
        reader = None if isinstance(reader, Camera) else _reconnect(reader.source, closing)


def _reconnect(source: Source, closing: threading.Event) -> PyAVReader | None:
    """The stream, opened again; None if that did not succeed."""
    from posenet.inference.media.video import PyAVReader

    if not closing.is_set():
        _log.warning("%s is lost; connecting again", source.name)
    deadline = time.monotonic() + RECONNECT_SECONDS
    while time.monotonic() < deadline and not closing.wait(RETRY_SECONDS):
        with contextlib.suppress(Exception):
            return PyAVReader(source)
    return None
