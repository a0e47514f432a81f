"""Cameras and live streams, of which always the newest image is read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from posenet.errors import DataError
from posenet.inference.media.video import ALL_FRAMES, FrameSelection, VideoFrame, VideoReader

RECONNECT_SECONDS = 60.0
"""For how long a lost stream is opened again and again."""
STOP_CHECK_SECONDS = 0.2
"""How often a request to stop is looked for while no image arrives."""
RETRY_SECONDS = 1.0
"""Pause before every attempt."""

_log = logging.getLogger(__name__)


class LiveVideo:
    """Reads a camera or a stream on its own thread; images that arrive before the last was taken are dropped.

    Args:
        reader: the open camera or stream.
        reopen: opens a stream that was lost; None for a camera, which is not opened again.

    Attributes:
        rate: frames per second that the camera or the stream states.
    """

    is_live = True

    def __init__(self, reader: VideoReader, reopen: Callable[[], VideoReader] | None = None) -> None:
        self.name = reader.name
        self.rate = reader.rate
        self.frame_count = 0
        self._reader = reader
        self._reopen = reopen
        self._newest: VideoFrame | None = None
        self._changed = threading.Condition()  # guards _newest and _ended
        self._ended = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read_images, daemon=True)
        self._thread.start()

    @property
    def aspect(self) -> float:
        return self._reader.aspect

    def _read_images(self) -> None:
        """Keep ``_newest`` up to date until the source is closed or lost; runs on its own thread."""
        started = time.monotonic()
        number = 0
        try:
            is_open = True
            while is_open:
                for image in self._reader.images():
                    if self._closing.is_set():
                        return
                    with self._changed:
                        self._newest = VideoFrame(number, time.monotonic() - started, image)
                        self._changed.notify()
                    number += 1
                is_open = self._reconnect()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _reconnect(self) -> bool:
        """Open a lost stream again; return whether that succeeded."""
        if self._reopen is None or self._closing.is_set():
            return False
        _log.warning("%s is lost; connecting again", self.name)
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
        self._closing.set()
        self._thread.join()
        self._reader.close()

    def frames(
        self, selection: FrameSelection = ALL_FRAMES, stop_requested: Callable[[], bool] = lambda: False
    ) -> Iterator[VideoFrame | DataError]:
        """Yield the newest image each time, until the selection ends, or the source is closed or lost; then an error.

        The stride does not apply: which images are dropped depends on the speed of the reader.

        Args:
            stop_requested: checked while no image arrives; true ends the frames.
        """
        while not stop_requested():
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._ended, STOP_CHECK_SECONDS)
                frame = self._newest
                self._newest = None
                has_ended = self._ended
            if frame is None:
                if has_ended:
                    yield DataError(f"{self.name} delivers no more images")
                    return
                continue
            if frame.seconds >= selection.start + selection.duration:
                return
            if frame.seconds >= selection.start:
                yield frame
