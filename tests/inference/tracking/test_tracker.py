"""People keep their id while they move, cross, are hidden and come back, from their first frame on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet import Person, Skeleton, Tracker
from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.media.frames import Frame, Source
from posenet.inference.predict import predict
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.inference.tracking.motion import KEEP_SECONDS
from posenet.inference.tracking.tracker import track_people
from posenet.settings import InferenceConfig, TrackingConfig
from tests.helpers.rendered_maps import person_at
from tests.helpers.spot_networks import SpotNetwork, spot_image
from tests.helpers.videos import write_spot_video

RATE = 25
VIDEO = Source("video", Path("a.mp4"))
GREY = np.zeros((4, 6, 3), np.uint8)
PREDICTOR = Predictor(SpotNetwork(), InferenceConfig(height=64), min_score=0)


def ids_of(frames: list[list[Person]], times: list[float] | None = None, **settings: float) -> list[list[int | None]]:
    """The id of every person in every frame; None for people who are not returned."""
    tracker = Tracker(TrackingConfig(**settings))
    ids = []
    for number, people in enumerate(frames):
        found = tracker.update(people, times[number] if times else number / RATE)
        id_of = {person.keypoints.tobytes(): person.id for person in found}
        ids.append([id_of.get(person.keypoints.tobytes()) for person in people])
    return ids


def test_a_person_has_an_id_from_the_confirming_frame_on() -> None:
    frames = [[person_at(x=100 + number)] for number in range(5)]
    assert ids_of(frames) == [[None], [None], [1], [1], [1]]
    assert ids_of(frames, confirm_frames=1) == [[1]] * 5


@pytest.mark.parametrize("num_seen, num_missed, last", [(2, 1, 1), (2, 2, None), (11, 19, 1), (11, 20, None)])
def test_a_person_is_waited_for_twice_as_long_as_it_was_seen_or_for_a_frame_before_it_has_an_id(
    num_seen: int, num_missed: int, last: int | None
) -> None:
    """From the first of 11 frames to the last it is seen for 10 intervals."""
    frames = [[person_at(100)]] * num_seen + [[]] * num_missed + [[person_at(100)]]
    assert ids_of(frames)[-1] == [last]


@pytest.mark.parametrize("min_agreement, same", [(0.05, True), (0.9, False)])
def test_a_person_who_does_not_agree_well_enough_with_a_track_is_another_one(
    monkeypatch: pytest.MonkeyPatch, min_agreement: float, same: bool
) -> None:
    monkeypatch.setattr("posenet.inference.tracking.tracker.MIN_AGREEMENT", min_agreement)
    frames = [[person_at(100)]] * 25 + [[person_at(115)]]
    ids = ids_of(frames, confirm_frames=1)
    assert ids == [[1]] * 25 + [[1 if same else 2]]


def test_the_order_of_the_people_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    orders = [rng.permutation(4) for _ in range(20)]
    frames = [[person_at(100 + 120 * index + number) for index in order] for number, order in enumerate(orders)]
    ids = [[frame[place] for place in np.argsort(order)] for frame, order in zip(ids_of(frames), orders)]
    assert sorted(ids[2]) == [1, 2, 3, 4] and ids[2:] == [ids[2]] * 18


@pytest.mark.parametrize("rate", [5, 10, 25, 60])
@pytest.mark.parametrize("hidden", [0, 30, 60])
def test_people_who_cross_keep_their_ids(rate: float, hidden: float) -> None:
    """The farther, smaller one is hidden within some pixels of the other."""
    times = [number / rate for number in range(round(5 * rate))]
    frames = []
    for time in times:
        near = 50 + 100 * time
        far = 550 - 100 * time
        frames.append([person_at(near, size=0.6)])
        if abs(far - near) >= hidden:
            frames[-1].append(person_at(far, y=190, size=0.5))
    ids = ids_of(frames, times)
    assert {frame[0] for frame in ids[3:]} == {ids[-1][0]}
    assert {frame[1] for frame in ids[3:] if len(frame) > 1} == {ids[-1][1]}
    assert ids[-1][0] != ids[-1][1]


def test_a_person_is_not_taken_for_one_who_is_hidden_behind_it() -> None:
    """The hidden one walks, and may be anywhere near; whoever is seen all the time trembles."""
    rng = np.random.default_rng(0)
    frames = []
    for x in range(100, 500, 4):
        frames.append([person_at(300, noise=rng.normal(0, 4, (1, 2)))])
        if abs(x - 300) > 80:
            frames[-1].append(person_at(x))
    assert ids_of(frames)[2:] == [[1, 2][: len(people)] for people in frames[2:]]


@pytest.mark.parametrize(("gap", "same"), [(0.5, True), (1.9, True), (2.3, False)])
def test_an_id_is_kept_for_keep_seconds(gap: float, same: bool) -> None:
    times = [number / RATE for number in range(10)]
    times += [times[-1] + gap + number / RATE for number in range(10)]
    ids = ids_of([[person_at(100)]] * 20, times)
    assert (ids[9] == ids[-1]) == same
    assert ids[-1] != [None]


def test_lost_keypoints_do_not_lose_the_person() -> None:
    rng = np.random.default_rng(3)
    frames = []
    for number in range(50):
        keypoints = person_at(100 + 2 * number, noise=rng.normal(0, 1.5, (18, 2))).keypoints
        keypoints[rng.random(18) < 0.6] = 0
        frames.append([Person(keypoints, 0.5)])
    assert ids_of(frames)[2:] == [[1]] * 48


def test_frames_without_people_and_people_without_keypoints() -> None:
    tracker = Tracker(TrackingConfig(confirm_frames=1))
    assert tracker.update([], 0.0) == []
    tracker.update([Person(np.zeros((18, 3), np.float32), 0.0), person_at(100)], 0.1)
    assert tracker.update([], 0.2) == []
    assert len(tracker.update([person_at(100)], 0.3)) == 1


@pytest.mark.parametrize("time", [0.5, math.nan, math.inf, -math.inf])
def test_times_that_are_not_in_order_are_refused(time: float) -> None:
    tracker = Tracker(TrackingConfig(confirm_frames=1))
    tracker.update([person_at(100)], 1.0)
    with pytest.raises(ValueError, match="give the times in order"):
        tracker.update([person_at(100)], time)
    assert tracker.update([person_at(100)], 1.0)[0].id == 1
    if not math.isfinite(time):
        with pytest.raises(ValueError, match="give the times in order"):
            Tracker().update([], time)


def test_people_of_another_skeleton_are_refused() -> None:
    other = Skeleton(("a", "b"), (("a", "b"),), (), {}, ("a", "b"), ("a", "b"), (0.1, 0.1))
    tracker = Tracker()
    tracker.update([person_at(100)], 0.0)
    with pytest.raises(ValueError, match="another skeleton than before"):
        tracker.update([Person(np.ones((2, 3), np.float32), 0.5, other)], 0.1)


def test_memory_does_not_grow_with_the_number_of_people() -> None:
    rng = np.random.default_rng(4)
    tracker = Tracker(TrackingConfig(smooth=True, confirm_frames=1))
    for number in range(150):
        tracker.update([person_at(x) for x in rng.uniform(0, 9e5, 3)], number / 5)
    assert len(tracker._tracks) <= 3 * 5 * KEEP_SECONDS + 3
    assert len(tracker._smoother._states) <= 3 * 5 * KEEP_SECONDS + 3


@pytest.mark.parametrize("distance, same", [(0, True), (10, True), (130, False), (-300, False)])
def test_nobody_takes_the_id_of_a_person_who_stood_still_elsewhere(distance: float, same: bool) -> None:
    """Half the diagonal of the person is some 120 pixels."""
    seen = [number / RATE for number in range(5 * RATE)]
    again = [seen[-1] + 1.9 + number / RATE for number in range(5)]
    ids = ids_of([[person_at(500)]] * len(seen) + [[person_at(500 + distance)]] * 5, seen + again)
    assert (ids[-1] == ids[len(seen) - 1]) == same
    assert ids[-1] != [None]


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
    assert stream(True) == stream() and stream(True, track=True) != tracked


def test_people_of_videos_are_tracked_and_smoothed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av", reason="needs PyAV (the extra video)")
    clip = write_spot_video(tmp_path / "clip.mp4", 12)

    def people(**options: Any) -> list[dict[str, Any]]:
        predict(clip, PREDICTOR, json=tmp_path / "p.json", overwrite=True, progress=False, **options)
        found: list[dict[str, Any]] = json.loads((tmp_path / "p.json").read_text())
        return found

    tracked = people(track=True)
    monkeypatch.setattr(PREDICTOR, "tracking", TrackingConfig(smooth=True))
    assert len(people()) == 12 and all("id" not in person for person in people())
    smoothed = people(track=True)
    assert [(p["frame"], p["id"], p["time"]) for p in tracked] == [(n, 1, n / 10) for n in range(12)]
    assert [p["id"] for p in smoothed] == [1] * 12
    assert [p["keypoints"] for p in smoothed] != [p["keypoints"] for p in tracked]


def test_tracking_photographs_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_image(tmp_path / "a.png", spot_image(98, 132, (20, 20), (90, 60), 4))
    predict(tmp_path, PREDICTOR, json=tmp_path / "p.json", track=True, progress=False)
    assert "tracking has no effect on images" in caplog.text
    assert all("id" not in person for person in json.loads((tmp_path / "p.json").read_text()))
