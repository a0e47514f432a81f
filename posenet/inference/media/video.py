"""What all readers and writers of videos share: frames, which of them are read, and when they are shown."""

from __future__ import annotations

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from posenet.errors import DataError

VIDEO_SUFFIXES = frozenset(
    ".3g2 .3gp .asf .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .ts .webm .wmv".split()
)
"""Files with these suffixes are read as videos."""
WRITABLE_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Formats that are also written."""
DEFAULT_FRAME_RATE = 25.0
"""Frames per second, where a video or a camera states no plausible rate."""
MIN_FRAME_RATE = 1.0
MAX_FRAME_RATE = 480.0
"""A higher rate is implausible; some files state the ticks of a clock instead."""
MAX_MISSING_SHARE = 0.05
"""A video that lacks more than this share of its length at the end was cut off; lengths in headers are rough."""
MIN_MISSING_FRAMES = 3
"""Nor does a video count as cut off that lacks fewer frames."""
MAX_UNREADABLE_IN_A_ROW = 100
"""After this many frames in a row that cannot be decoded, a video counts as ended."""


class VideoFrame(NamedTuple):
    """A frame of a video or a camera."""

    number: int
    """Counts from 0."""
    seconds: float
    """Time since the first frame."""
    image: np.ndarray
    """(H, W, 3) BGR uint8."""


@dataclass(frozen=True)
class FrameSelection:
    """Which frames of a video are read.

    Attributes:
        start: seconds after the first frame; earlier frames are skipped.
        duration: seconds after ``start``; later frames are not read.
        stride: every how many frames one is read.
    """

    start: float = 0.0
    duration: float = math.inf
    stride: int = 1

    def count(self, frame_count: int, rate: float) -> int:
        """About how many frames of a video of ``frame_count`` frames are read."""
        remaining = min(frame_count - self.start * rate, self.duration * rate)
        return max(0, math.ceil(remaining / self.stride))


ALL_FRAMES = FrameSelection()


class VideoReader(ABC):
    """Reads a video once, frame by frame. Frames are rotated as the metadata says.

    A subclass decodes; this class numbers the frames, selects among them and reports damage.

    Attributes:
        name: for messages.
        rate: frames per second; an average where the rate varies.
        frame_count: number of frames, a rough one in some formats; 0 where it is unknown.
        aspect: width of a pixel divided by its height; valid once a frame has been read.
    """

    is_live = False
    """Whether frames are lost when they are not read in time."""
    name: str
    rate: float = DEFAULT_FRAME_RATE
    frame_count: int = 0
    aspect: float = 1.0

    @abstractmethod
    def _decode(self) -> Iterator[float | None]:
        """Decode frame after frame. Yield the time of each in seconds, NaN if unknown; None if it is damaged."""

    @abstractmethod
    def _image(self) -> np.ndarray:
        """The image of the frame that was decoded last, (H, W, 3) BGR uint8."""

    def _seek(self, seconds: float) -> int:
        """Skip frames before ``seconds`` if that is possible without decoding them; return their number."""
        return 0

    def _why_incomplete(self, frames_read: int) -> str:
        """Why the video counts as cut off after all its frames are read; empty if it is complete."""
        return ""

    def _why_undecodable(self) -> str:
        """Why no frame can be decoded."""
        return "is damaged: no frame can be decoded"

    @abstractmethod
    def close(self) -> None: ...

    def images(self) -> Iterator[np.ndarray]:
        """Yield the images of all intact frames."""
        for seconds in self._decode():
            if seconds is not None:
                yield self._image()

    def frames(self, selection: FrameSelection = ALL_FRAMES) -> Iterator[VideoFrame | DataError]:
        """Yield the selected frames, and an error for each damaged frame that intact frames follow.

        A last error says so if the video was cut off or has no frame after the start of the selection.
        """
        number = self._seek(selection.start)
        unreadable = 0  # frames since the last intact one
        seconds = -math.inf
        first_selected: int | None = None
        for stated in self._decode():
            if stated is None:
                unreadable += 1
                number += 1
                if unreadable == MAX_UNREADABLE_IN_A_ROW:
                    break
                continue
            for damaged in range(number - unreadable, number):
                yield DataError(f"frame {damaged} of {self.name} cannot be decoded")
            unreadable = 0
            seconds = self._increasing(stated, seconds)
            if seconds >= selection.start + selection.duration:
                return
            if seconds >= selection.start:
                if first_selected is None:
                    first_selected = number
                if (number - first_selected) % selection.stride == 0:
                    yield VideoFrame(number, seconds, self._image())
            number += 1
        frames_read = number - unreadable
        if frames_read == 0:
            yield DataError(f"{self.name} {self._why_undecodable()}")
        elif reason := self._why_incomplete(frames_read):
            yield DataError(f"{self.name} ends early: {reason}")
        elif first_selected is None:
            yield DataError(f"{self.name} has no frame after {selection.start:g} s; the last is at {seconds:.2f} s")

    def _increasing(self, stated: float, previous: float) -> float:
        """The stated time of a frame if it is later than that of the previous frame, else one by the frame rate."""
        if stated > previous:
            return stated
        return 0.0 if previous == -math.inf else previous + 1 / self.rate


class VideoWriter(ABC):
    """Writes a video.

    Args:
        size: (height, width) of the images. Video codecs need even sides: an odd side is extended by one pixel.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._encoded_size = size[0] + size[0] % 2, size[1] + size[1] % 2

    @abstractmethod
    def write(self, image: np.ndarray, seconds: float) -> None:
        """Append a (H, W, 3) BGR uint8 image that is shown from ``seconds`` on; times increase.

        The first image may have a time after 0, because only a part of a video is written.

        Raises:
            OSError: the disk is full.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete the file.

        Raises:
            OSError: the disk is full.
        """

    def _fit(self, image: np.ndarray) -> np.ndarray:
        """Resize an image of another size, and extend odd sides."""
        height, width = self._size
        if image.shape[:2] != self._size:
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        below = self._encoded_size[0] - height
        right = self._encoded_size[1] - width
        if below or right:
            image = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_REPLICATE)
        return image


def is_cut_off(length: float, stated: float, tolerance: float) -> bool:
    """Whether a video is much shorter than its header states, in frames or in seconds."""
    return stated - length > max(tolerance, MAX_MISSING_SHARE * stated)


def plausible_rate(rate: float) -> float:
    """A stated frame rate, or the default where it is implausible or not a number."""
    return rate if MIN_FRAME_RATE <= rate <= MAX_FRAME_RATE else DEFAULT_FRAME_RATE


@contextlib.contextmanager
def silence_opencv() -> Iterator[None]:
    """Keep OpenCV and FFmpeg from printing on standard error; our own messages say what is wrong."""
    # FFmpeg reads its level once, when it is first used.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)
