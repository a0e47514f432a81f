"""Numbering, selecting and timing frames, whatever decodes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media.reader import MAX_UNREADABLE_IN_A_ROW, FrameSelection, VideoReader, plausible_rate
from posenet.inference.media.sources import Frame, Source

DAMAGED = None


class ListedTimes(VideoReader):
    """A video of frames at the given times."""

    rate = 10.0

    def __init__(self, times: Sequence[float | None]) -> None:
        self.source = Source("video", Path("clip"))
        self._times = times

    def decode(self) -> Iterator[float | None]:
        yield from self._times

    def image(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        pass


def read(times: Sequence[float | None], **selection: Any) -> list[Frame]:
    return list(ListedTimes(times).frames(FrameSelection(**selection)))


def test_times_that_are_unknown_or_do_not_increase_follow_the_frame_rate() -> None:
    times = [frame.seconds for frame in read([math.nan, 0.1, 0.05, 0.5, math.nan])]
    np.testing.assert_allclose(times, [0, 0.1, 0.2, 0.5, 0.6])


def test_damaged_frames_keep_their_numbers_and_are_reported_unless_they_are_the_last() -> None:
    frames = read([0.0, DAMAGED, DAMAGED, 0.3, DAMAGED])
    assert [str(frame.error) if frame.error else frame.number for frame in frames] == [
        0,
        "frame 1 of clip cannot be decoded",
        "frame 2 of clip cannot be decoded",
        3,
    ]
    assert len(read([0.0] + [DAMAGED] * MAX_UNREADABLE_IN_A_ROW + [20.0])) == 1, "too many in a row end the video"
    [frame] = read([DAMAGED] * 3)
    assert isinstance(frame.error, DataError) and str(frame.error) == "clip is damaged: no frame can be decoded"


@pytest.mark.parametrize(
    "selection, numbers",
    [
        ({}, list(range(20))),
        ({"stride": 7}, [0, 7, 14]),
        ({"start": 1.0}, list(range(10, 20))),
        ({"duration": 0.3}, [0, 1, 2]),
        ({"start": 0.45, "duration": 1.0, "stride": 4}, [5, 9, 13]),
    ],
)
def test_selected_frames(selection: dict[str, Any], numbers: list[int]) -> None:
    frames = read([number / 10 for number in range(20)], **selection)
    assert [frame.number for frame in frames] == numbers
    assert frames[0].rate == 10 / selection.get("stride", 1)


def test_a_start_after_the_end_is_an_error() -> None:
    [frame] = read([0.0, 0.1], start=5.0)
    assert str(frame.error) == "clip has no frame after 5 s; the last is at 0.10 s"


def test_implausible_rates_are_replaced_by_the_default() -> None:
    rates = [0, -1, float("nan"), 90000, 29.97]
    assert [plausible_rate(rate) for rate in rates] == [25, 25, 25, 25, 29.97]


def test_a_frame_that_cannot_be_used_is_reported_and_the_others_are_read() -> None:
    class WithOddFrames(ListedTimes):
        calls = 0

        def image(self) -> np.ndarray:
            self.calls += 1
            if self.calls % 2 == 0:
                raise DataError("it has no colours")
            return super().image()

    frames = list(WithOddFrames([0.0, 0.1, 0.2, 0.3]).frames(FrameSelection()))
    assert [str(frame.error) if frame.error else frame.number for frame in frames] == [
        0,
        "frame 1 of clip cannot be used: it has no colours",
        2,
        "frame 3 of clip cannot be used: it has no colours",
    ]
