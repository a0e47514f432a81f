"""Every video is tracked by itself, and images are not tracked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.inference.media.frames import FramePeople, track_people
from posenet.inference.media.sources import Frame, Source
from posenet.settings import TrackingConfig
from tests.helpers.moving_people import person_at

IMAGE = np.zeros((8, 8, 3), np.uint8)


def frames_of(name: str, times: list[float]) -> list[Frame]:
    source = Source("video", Path(name))
    return [Frame(source, IMAGE, number, seconds, 25.0) for number, seconds in enumerate(times)]


def ids(frames: list[Frame]) -> list[int | None]:
    """The ids of the only person, who stands still in all frames."""
    predictions = [FramePeople(frame, [person_at(100)]) for frame in frames]
    tracked = track_people(predictions, TrackingConfig(confirm_frames=1))
    return [person.id for _, people in tracked for person in people]


def test_the_ids_of_every_video_start_at_1() -> None:
    assert ids([*frames_of("a.mp4", [0.0, 0.04]), *frames_of("b.mp4", [0.0, 0.04])]) == [1] * 4


def test_people_of_images_have_no_id() -> None:
    assert ids([Frame(Source("image", Path("a.png")), IMAGE)]) == [None]


def test_a_clock_that_jumps_back_does_not_end_the_video() -> None:
    assert len(ids(frames_of("a.mp4", [0.0, 5.0, 1.0, 1.04]))) == 4
