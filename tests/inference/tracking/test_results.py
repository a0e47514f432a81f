"""Results of videos get the ids of their people from the first frame on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media.sources import Frame, Source
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.inference.tracking.results import track_people
from posenet.settings import TrackingConfig
from tests.helpers.rendered_maps import person_at
from tests.helpers.spot_networks import SpotNetwork, spot_image

VIDEO = Source("video", Path("a.mp4"))
GREY = np.zeros((4, 6, 3), np.uint8)


def test_a_video_that_follows_itself_is_another_one_for_the_tracker() -> None:
    frames = [Frame(VIDEO, GREY, number, number / 10) for number in range(3)] * 2
    people = [person_at(50 + frame.seconds, 50) for frame in frames]
    results = [Result(frame, [person]) for frame, person in zip(frames, people, strict=True)]
    tracked = list(track_people(results, TrackingConfig(confirm_frames=3)))
    assert [result.ids for result in tracked] == [[1]] * 6


def test_people_have_their_id_from_their_first_frame_and_a_live_source_does_not_wait() -> None:
    """One person is seen in all frames, another one in two, which is too few to be confirmed."""

    def ids(is_live: bool) -> list[list[int | None]]:
        frames = [Frame(VIDEO, GREY, number, number / 10, is_live=is_live) for number in range(6)]
        people = [[person_at(50, 50), *([person_at(400, 50)] if number in (1, 2) else [])] for number in range(6)]
        damaged = Result(Frame(VIDEO, error=DataError("frame 2 is damaged")))
        results = [Result(frame, found) for frame, found in zip(frames, people, strict=True)]
        tracked = list(track_people([*results[:3], damaged, *results[3:]], TrackingConfig(confirm_frames=3)))
        assert [result.frame.number for result in tracked] == [0, 1, 2, None, 3, 4, 5]
        return [result.ids for result in tracked if result.error is None]

    assert ids(is_live=False) == [[1]] * 6
    assert ids(is_live=True) == [[], [], [1], [1], [1], [1]]


def test_people_wait_no_longer_than_the_memory_of_their_images_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenet.inference.tracking.results.LOOK_BACK_BYTES", 2 * 72)
    frames = [Frame(VIDEO, GREY, number, number / 10) for number in range(8)]
    results = (Result(frame, [person_at(50, 50)]) for frame in frames)
    tracked = track_people(results, TrackingConfig(confirm_frames=5))
    assert [result.ids for result in tracked] == [[], [], *[[1]] * 6]


def test_every_video_is_tracked_by_itself_and_images_are_not() -> None:
    """Two people stand still, one in each video. A clock that jumps back does not end the video."""
    other = Source("video", Path("b.mp4"))
    person_of = {VIDEO: person_at(100), other: person_at(400)}

    def ids(*frames: tuple[Source, float]) -> list[int | None]:
        predictions = [Result(Frame(source, GREY, 0, seconds), [person_of[source]]) for source, seconds in frames]
        tracked = track_people(predictions, TrackingConfig(confirm_frames=1))
        return [person.id for result in tracked for person in result]

    assert ids((VIDEO, 0.0), (VIDEO, 0.04), (other, 0.0), (other, 0.04)) == [1] * 4
    assert len(ids((VIDEO, 0.0), (VIDEO, 5.0), (VIDEO, 1.0), (VIDEO, 1.04))) == 4
    [[person]] = track_people([Result(Frame(VIDEO, GREY), [person_at(100)])], TrackingConfig())
    assert person.id is None


def test_a_stream_of_images_in_memory_is_tracked_and_smoothed_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    images = [spot_image(97, 131, (40 + number, 20), (90, 60), 4) for number in range(8)]

    def stream(smooth_setting: bool = False, **options: bool) -> list[Result]:
        predictor = Predictor(SpotNetwork(), height=64, min_score=0)
        predictor.tracking = TrackingConfig(smooth=smooth_setting)
        return list(predictor.stream(images, **options))

    assert [result.ids for result in stream()] == [[None]] * 8
    tracked = stream(track=True)
    assert [result.ids for result in tracked] == [[1]] * 8
    assert [result.seconds for result in tracked] == [number / 25 for number in range(8)]
    [message] = caplog.messages
    assert "Tracker" in message and len(message) <= 160
    assert stream(smooth=True) == stream(True, track=True) != tracked
