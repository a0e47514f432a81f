"""Every video is tracked by itself, and images are not tracked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.inference.media.frame_tracking import FrameTracker
from posenet.inference.media.sources import Frame, Source
from posenet.settings import TrackingConfig
from tests.helpers.moving_people import person_at

IMAGE = np.zeros((8, 8, 3), np.uint8)


def frames_of(name: str, times: list[float]) -> list[Frame]:
    source = Source("video", Path(name))
    return [Frame(source, IMAGE, number, seconds, 25.0) for number, seconds in enumerate(times)]


def test_the_ids_of_every_video_start_at_1() -> None:
    tracker = FrameTracker(TrackingConfig(confirm_frames=1))
    for name in ("a.mp4", "b.mp4"):
        for frame in frames_of(name, [0.0, 0.04]):
            assert [person.id for person in tracker.update(frame, [person_at(100)])] == [1]


def test_people_of_images_have_no_id() -> None:
    tracker = FrameTracker(TrackingConfig(confirm_frames=1))
    frame = Frame(Source("image", Path("a.png")), IMAGE)
    assert [person.id for person in tracker.update(frame, [person_at(100)])] == [None]


def test_a_clock_that_jumps_back_does_not_end_the_video() -> None:
    tracker = FrameTracker(TrackingConfig(confirm_frames=1))
    for frame in frames_of("a.mp4", [0.0, 5.0, 1.0, 1.04]):
        people = tracker.update(frame, [person_at(100)])
    assert len(people) == 1
