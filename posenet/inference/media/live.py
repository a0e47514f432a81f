"""Cameras and live streams, of which always the newest image is read."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.images import to_bgr
from posenet.inference.media.sources import MAX_UNREADABLE_IN_A_ROW, Frame, FrameSelection, Source, plausible_rate

if TYPE_CHECKING:
    from posenet.inference.media.video import PyAVReader

RECONNECT_SECONDS = 60.0
"""For how long a lost stream is opened again and again."""
STOP_CHECK_SECONDS = 0.2
"""How often a request to stop is looked for while no image arrives."""
RETRY_SECONDS = 1.0
"""Pause before every attempt."""

_log = logging.getLogger(__name__)


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


def read_live(
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
                    if closing.is_set():
                        return
                    now = time.monotonic()
                    image = None
                    with contextlib.suppress(Exception):
                        image = None if seconds_of_stream is None else reader.image()
                    unreadable = unreadable + 1 if image is None else 0
                    if unreadable == MAX_UNREADABLE_IN_A_ROW:
                        break
                    if image is None:
                        continue
                    begin = now if begin is None else begin
                    about = next(numbers), now - begin, reader.rate, reader.aspect
                    with contextlib.suppress(queue.Empty):
                        newest.get_nowait()
                    newest.put(Frame(reader.source, image, *about, is_live=True))
        except Exception as error:  # of whatever library: the source is lost
            _log.debug("reading %s has failed", reader.source.name, exc_info=error)
        reader = None if isinstance(reader, Camera) else _reconnect(reader, closing)


def _reconnect(lost: PyAVReader, closing: threading.Event) -> PyAVReader | None:
    """The stream, opened again; None if that did not succeed."""
    from posenet.inference.media.video import PyAVReader

    if not closing.is_set():
        _log.warning("%s is lost; connecting again", lost.source.name)
    deadline = time.monotonic() + RECONNECT_SECONDS
    while time.monotonic() < deadline and not closing.wait(RETRY_SECONDS):
        with contextlib.suppress(Exception):
            return PyAVReader(lost.source)
    return None
