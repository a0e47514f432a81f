"""Reading videos frame by frame: what all readers share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.inference.media.sources import Frame, Source

DEFAULT_FRAME_RATE = 25.0
"""Frames per second, where a video or a camera states no plausible rate."""
MIN_FRAME_RATE = 1.0
MAX_FRAME_RATE = 480.0
"""A higher rate is implausible; some files state the ticks of a clock instead."""
MAX_UNREADABLE_IN_A_ROW = 100
"""After this many frames in a row that cannot be decoded, a video counts as ended."""


@dataclass(frozen=True)
class FrameSelection:
    """Which frames of a video are read."""

    start: float = 0.0
    """Seconds after the first frame; earlier frames are skipped."""
    duration: float = math.inf
    """Seconds after ``start``; later frames are not read."""
    stride: int = 1
    """Every how many frames one is read."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` if a value selects no frame of any video."""
        if not 0 <= self.start < math.inf:
            raise ConfigError(f"start {self.start} is no number of seconds; give 0 or more")
        if not self.duration >= 0:
            raise ConfigError(f"duration {self.duration} is no number of seconds; give 0 or more")
        if not (isinstance(self.stride, int) and self.stride >= 1):
            raise ConfigError(f"stride {self.stride} is no number of frames; give 1 or more")


class VideoReader(ABC):
    """Reads a video once: a subclass decodes; this class numbers and selects the frames, and reports damage."""

    source: Source
    rate: float = DEFAULT_FRAME_RATE
    """Frames per second; an average where the rate varies."""
    aspect: float = 1.0
    """Width of a pixel divided by its height; valid once a frame has been read."""
    length: float = 0.0
    """In seconds, as the file states it; 0 if it states none."""

    @abstractmethod
    def decode(self) -> Iterator[float | None]:
        """Decode frame after frame. Yield the time of each in seconds, NaN if unknown; None if it is damaged."""

    @abstractmethod
    def image(self) -> np.ndarray:
        """The image of the frame that was decoded last, (H, W, 3) BGR uint8, rotated as the metadata say.

        ``DataError`` says why it cannot be converted to that.
        """

    def seek(self, seconds: float) -> int:
        """Skip frames before ``seconds`` if that is possible without decoding them; return their number."""
        return 0

    def why_incomplete(self, frames_read: int) -> str:
        """Why the video counts as cut off after all its frames are read; empty if it is complete."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Release the file or the device."""

    def frames(self, selection: FrameSelection) -> Iterator[Frame]:
        """Yield the selected frames, and one with an error for each damaged frame that intact frames follow.

        A last error says so if the video was cut off or has no frame after the start of the selection.
        """
        number = self.seek(selection.start)
        unreadable = 0  # frames since the last intact one
        seconds = -math.inf
        first_selected: int | None = None
        name = self.source.name
        for stated in self.decode():
            if stated is None:
                unreadable += 1
                number += 1
                if unreadable == MAX_UNREADABLE_IN_A_ROW:
                    break
                continue
            for damaged in range(number - unreadable, number):
                yield self._error(f"frame {damaged} of {name} cannot be decoded")
            unreadable = 0
            seconds = self._increasing(stated, seconds)
            if seconds >= selection.start + selection.duration:
                return
            if seconds >= selection.start:
                if first_selected is None:
                    first_selected = number
                if (number - first_selected) % selection.stride == 0:
                    try:
                        image = self.image()
                    except DataError as error:
                        yield self._error(f"frame {number} of {name} cannot be used: {error}")
                    else:
                        rate = self.rate / selection.stride
                        left = min(self.length, selection.start + selection.duration) - seconds
                        expected = max(0, math.ceil(left * rate - 0.5))
                        yield Frame(self.source, image, number, seconds, rate, self.aspect, expected)
            number += 1
        frames_read = number - unreadable
        if frames_read == 0:
            # FFmpeg cannot read all files from servers that do not send parts of them.
            remedy = "; download it, and give the file" if self.source.url is not None else ""
            yield self._error(f"{name} is damaged: no frame can be decoded{remedy}")
        elif reason := self.why_incomplete(frames_read):
            yield self._error(f"{name} ends early: {reason}")
        elif first_selected is None:
            yield self._error(f"{name} has no frame after {selection.start:g} s; the last is at {seconds:.2f} s")

    def _increasing(self, stated: float, previous: float) -> float:
        """The stated time of a frame if it is later than that of the previous frame, else one by the frame rate."""
        if stated > previous:
            return stated
        return 0.0 if previous == -math.inf else previous + 1 / self.rate

    def _error(self, message: str) -> Frame:
        return Frame(self.source, error=DataError(message))


def plausible_rate(rate: float) -> float:
    """A stated frame rate, or the default where it is implausible or not a number."""
    return rate if MIN_FRAME_RATE <= rate <= MAX_FRAME_RATE else DEFAULT_FRAME_RATE
