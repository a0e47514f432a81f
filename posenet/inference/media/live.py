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

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.inference.media.reader import FrameSelection, VideoReader, plausible_rate
from posenet.inference.media.sources import Frame, Source

RECONNECT_SECONDS = 60.0
"""For how long a lost stream is opened again and again."""
STOP_CHECK_SECONDS = 0.2
"""How often a request to stop is looked for while no image arrives."""
RETRY_SECONDS = 1.0
"""Pause before every attempt."""

_log = logging.getLogger(__name__)


class Camera(VideoReader):
    """A camera, through OpenCV.

    Raises:
        DataError: there is none, or another program uses it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        with _silent_opencv():
            self._capture = cv2.VideoCapture(source.location)  # a number or a device file
        if not self._capture.isOpened():
            raise DataError(f"{source.name} cannot be opened; connect it, and close other programs that use it")
        self.rate = plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))

    def decode(self) -> Iterator[float | None]:
        while self._capture.grab():
            yield math.nan

    def image(self) -> np.ndarray:
        return self._capture.retrieve()[1]

    def close(self) -> None:
        self._capture.release()


class LiveReader:
    """Reads a camera or a stream on its own thread; images that arrive before the last was taken are dropped.

    Args:
        reader: the open camera or stream.
        stop_requested: checked while no image arrives; true ends the frames.
        reopen: opens a stream that was lost; None for a camera, which is not opened again.
    """

    def __init__(
        self,
        reader: VideoReader,
        stop_requested: Callable[[], bool] = lambda: False,
        reopen: Callable[[], VideoReader] | None = None,
    ) -> None:
        self.source = reader.source
        self._reader = reader
        self._stop_requested = stop_requested
        self._reopen = reopen
        self._newest: queue.Queue[Frame] = queue.Queue(1)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read_images, daemon=True)
        self._thread.start()

    def _read_images(self) -> None:
        """Keep ``_newest`` up to date until the source is closed or lost; runs on its own thread."""
        started = time.monotonic()
        numbers = itertools.count()
        is_open = True
        while is_open:
            for _ in filter(lambda seconds: seconds is not None, self._reader.decode()):
                if self._closing.is_set():
                    return
                reader = self._reader
                image = reader.image()
                seconds = time.monotonic() - started
                frame = Frame(self.source, image, next(numbers), seconds, reader.rate, reader.aspect, is_live=True)
                with contextlib.suppress(queue.Empty):
                    self._newest.get_nowait()
                self._newest.put(frame)
            is_open = self._reconnect()

    def _reconnect(self) -> bool:
        """Open a lost stream again; return whether that succeeded."""
        if self._reopen is None or self._closing.is_set():
            return False
        _log.warning("%s is lost; connecting again", self.source.name)
        deadline = time.monotonic() + RECONNECT_SECONDS
        while time.monotonic() < deadline and not self._closing.wait(RETRY_SECONDS):
            try:
                reader = self._reopen()
            except DataError:
                continue
            self._reader.close()
            self._reader = reader
            return True
        return False

    def close(self) -> None:
        """End the thread, and release the camera or the stream."""
        self._closing.set()
        self._thread.join()
        self._reader.close()

    def frames(self, selection: FrameSelection) -> Iterator[Frame]:
        """Yield the newest image each time, until the selection ends, or the source is closed or lost; then an error.

        The stride does not apply: which images are dropped depends on the speed of the reader.
        """
        while not self._stop_requested():
            has_ended = not self._thread.is_alive()
            try:
                frame = self._newest.get(timeout=STOP_CHECK_SECONDS)
            except queue.Empty:
                if has_ended:
                    yield Frame(self.source, error=DataError(f"{self.source.name} delivers no more images"))
                    return
                continue
            if frame.seconds >= selection.start + selection.duration:
                return
            if frame.seconds >= selection.start:
                yield frame


@contextlib.contextmanager
def _silent_opencv() -> Iterator[None]:
    """Keep OpenCV from printing on standard error; our own messages say what is wrong."""
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)
