"""Numbering, selecting and timing frames, without a library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media import video
from posenet.inference.media.video import FrameSelection, VideoFrame, VideoReader

DAMAGED = None


class ListedTimes(VideoReader):
    """A video of frames at the given times."""

    name = "clip"
    rate = 10.0

    def __init__(self, times: Sequence[float | None]) -> None:
        self._times = times

    def _decode(self) -> Iterator[float | None]:
        yield from self._times

    def _image(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None: ...


def read(times: Sequence[float | None], **selection: Any) -> list[Any]:
    return list(ListedTimes(times).frames(FrameSelection(**selection)))


def test_times_that_are_unknown_or_do_not_increase_follow_the_frame_rate() -> None:
    times = [frame.seconds for frame in read([math.nan, 0.1, 0.05, 0.5, math.nan])]
    np.testing.assert_allclose(times, [0, 0.1, 0.2, 0.5, 0.6])


def test_damaged_frames_keep_their_numbers_and_are_reported_unless_they_are_the_last() -> None:
    items = read([0.0, DAMAGED, DAMAGED, 0.3, DAMAGED])
    assert [item.number if isinstance(item, VideoFrame) else str(item) for item in items] == [
        0,
        "frame 1 of clip cannot be decoded",
        "frame 2 of clip cannot be decoded",
        3,
    ]


def test_reading_ends_after_too_many_damaged_frames() -> None:
    items = read([0.0] + [DAMAGED] * video.MAX_UNREADABLE_IN_A_ROW + [20.0])
    assert len(items) == 1


def test_a_video_without_an_intact_frame_is_damaged() -> None:
    [error] = read([DAMAGED] * 3)
    assert isinstance(error, DataError) and str(error) == "clip is damaged: no frame can be decoded"


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
    assert FrameSelection(**selection).count(20, 10.0) == pytest.approx(len(numbers), abs=1)


def test_implausible_rates_are_replaced_by_the_default() -> None:
    rates = [0, -1, float("nan"), 90000, 29.97]
    assert [video.plausible_rate(rate) for rate in rates] == [25, 25, 25, 25, 29.97]
