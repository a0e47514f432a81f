"""Cameras and live streams: always the newest image, and a new connection after a lost one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media import live_video
from posenet.inference.media.live_video import LiveVideo
from posenet.inference.media.sources import CameraSource, Frame, UrlSource, open_camera, read_frames
from posenet.inference.media.video import FrameSelection, VideoReader
from tests.helpers.media_server import IMAGES_PER_CONNECTION, media_server


class FakeCapture:
    """Stands in for ``cv2.VideoCapture``: a camera of three images, each of which waits for ``requested``."""

    def __init__(self, device: int | str) -> None:
        self.device = device
        self.count = 0
        self.requested = threading.Semaphore(1)

    def isOpened(self) -> bool:
        return self.device in (0, "/dev/video0")

    def get(self, _: int) -> float:
        return 0.0

    def grab(self) -> bool:
        self.requested.acquire(timeout=5)
        self.count += 1
        return self.count <= 3

    def retrieve(self) -> tuple[bool, np.ndarray]:
        return True, np.full((4, 6, 3), self.count, np.uint8)

    def release(self) -> None: ...


@pytest.mark.parametrize("device", [0, "/dev/video0"])
def test_a_camera_yields_images_until_it_fails(monkeypatch: pytest.MonkeyPatch, device: int | str) -> None:
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = open_camera(CameraSource(device))
    items = []
    for item in camera.frames():
        items.append(item)
        camera._reader._capture.requested.release()
    camera.close()
    *frames, error = items
    assert [frame.number for frame in frames] == [0, 1, 2]
    assert [int(frame.image[0, 0, 0]) for frame in frames] == [1, 2, 3]
    assert f"camera {device} delivers no more images" in str(error)


def test_a_camera_yields_the_newest_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = open_camera(CameraSource(0))
    for _ in range(5):
        camera._reader._capture.requested.release()
    camera._thread.join(5)
    assert int(next(iter(camera.frames())).image[0, 0, 0]) == 3
    camera.close()


def test_a_missing_camera_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    with pytest.raises(DataError, match="camera 1 cannot be opened"):
        open_camera(CameraSource(1))


class ThreeImages(VideoReader):
    """A stream that is lost after three images, each of which is taken before the next arrives."""

    name = "stream"

    def __init__(self, taken: threading.Semaphore) -> None:
        self._taken = taken
        self.is_closed = False

    def _decode(self) -> Iterator[float]:
        for _ in range(3):
            self._taken.acquire(timeout=5)
            yield 0.0

    def _image(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_video, "RETRY_SECONDS", 0.01)


def test_a_lost_stream_is_opened_again_until_the_time_for_that_is_over(
    no_pause: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_video, "RECONNECT_SECONDS", 0.5)
    taken = threading.Semaphore(1)
    readers = [ThreeImages(taken), None, ThreeImages(taken)]
    opened = iter(readers[1:])

    def reopen() -> VideoReader:
        reader = next(opened, None)
        if reader is None:
            raise DataError("no connection")
        return reader

    live = LiveVideo(readers[0], reopen)
    items = []
    for item in live.frames():
        items.append(item)
        taken.release()
    live.close()
    assert [item.number for item in items[:-1]] == list(range(6)), "numbers go on after the stream is lost"
    assert str(items[-1]) == "stream delivers no more images"
    assert caplog.messages == ["stream is lost; connecting again"] * 2
    assert readers[0].is_closed and readers[2].is_closed


def test_a_live_source_is_read_for_a_given_time(no_pause: None) -> None:
    taken = threading.Semaphore(10_000)
    live = LiveVideo(ThreeImages(taken), lambda: ThreeImages(taken))
    frames = list(live.frames(FrameSelection(start=0.1, duration=0.3)))
    live.close()
    assert all(isinstance(frame.number, int) and 0.1 <= frame.seconds < 0.4 for frame in frames)


def test_a_live_http_stream_is_connected_again(
    library: str, no_pause: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with media_server(tmp_path) as address:
        frames = []
        for frame in read_frames([UrlSource("video", f"{address}/live")]):
            assert isinstance(frame, Frame) and frame.is_live and frame.image.shape == (48, 64, 3)
            frames.append(frame)
            if frame.number > 2 * IMAGES_PER_CONNECTION:
                break
    assert "/live is lost; connecting again" in caplog.text
    assert [frame.number for frame in frames] == sorted({frame.number for frame in frames})


def test_a_stream_without_a_server_is_an_error(library: str) -> None:
    [frame] = read_frames([UrlSource("video", "rtsp://me:secret@127.0.0.1:9/live")])
    assert "rtsp://127.0.0.1:9/live cannot be opened" in str(frame.error) and "secret" not in str(frame.error)


def test_a_request_to_stop_ends_a_stream_that_delivers_nothing(no_pause: None) -> None:
    taken = threading.Semaphore(1)
    live = LiveVideo(ThreeImages(taken))
    asked = itertools.count()
    frames = list(live.frames(stop_requested=lambda: next(asked) == 3))
    assert [frame.number for frame in frames] == [0], "no error follows"
    taken.release(2)
    live.close()
