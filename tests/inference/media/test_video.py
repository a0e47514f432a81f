"""Reading and writing videos, and reading cameras."""

import struct
import threading

import cv2
import numpy as np
import pytest

from posenet.errors import ConfigError, DataError
from posenet.inference.media import video
from posenet.inference.media.video import Camera, VideoFile, VideoFrame, VideoWriter
from tests.helpers.videos import GREY, read_video, write_video


@pytest.mark.parametrize("suffix", sorted(video.WRITABLE_SUFFIXES))
def test_a_written_video_is_read_back_with_its_rate_size_and_times(tmp_path, suffix):
    path = write_video(tmp_path / f"bild ü{suffix}")
    reader = VideoFile(path)
    frames = list(reader)
    reader.close()
    assert reader.rate == 10 and reader.frame_count == 12
    assert [frame.number for frame in frames] == list(range(12))
    np.testing.assert_allclose([frame.seconds for frame in frames], np.arange(12) / 10, atol=2e-3)
    assert all(frame.image.shape == (48, 64, 3) for frame in frames)
    assert frames[8].image.mean() == pytest.approx(8 * 15 + 15, abs=6)
    assert list(tmp_path.iterdir()) == [path]


def test_rotation_metadata_is_applied(tmp_path):
    path = write_video(tmp_path / "phone.mp4")
    data = path.read_bytes()
    rotated, unrotated = (
        struct.pack(">9i", *(v << 16 for v in m), 1 << 30)
        for m in ((0, 1, 0, -1, 0, 0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0))
    )
    track = data.index(b"tkhd")
    assert unrotated in data[track:]
    path.write_bytes(data[:track] + data[track:].replace(unrotated, rotated, 1))
    assert read_video(path)[0].image.shape == (64, 48, 3)


def test_damaged_frames_are_reported_and_skipped(tmp_path):
    path = write_video(tmp_path / "clip.mp4", count=30)
    data = bytearray(path.read_bytes())
    third = len(data) // 3
    half = len(data) // 2
    data[third:half] = bytes(half - third)
    path.write_bytes(data)
    items = read_video(path)
    damaged = [number for number, item in enumerate(items) if isinstance(item, DataError)]
    assert damaged and isinstance(items[-1], VideoFrame)
    assert all(item.number == number for number, item in enumerate(items) if isinstance(item, VideoFrame))
    assert f"frame {damaged[0]} of {path}" in str(items[damaged[0]])


def test_a_video_that_was_cut_off_is_reported(tmp_path):
    path = write_video(tmp_path / "clip.avi", count=20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    *frames, error = read_video(path)
    assert 5 < len(frames) < 15 and f"{path} ends early: it has {len(frames)} of 20 frames" in str(error)


@pytest.mark.parametrize("content", [None, b"", b"no video"])
def test_a_file_that_is_no_video_is_refused(tmp_path, content):
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="x.mp4"):
        VideoFile(path)


def test_odd_sides_are_extended_and_frames_of_other_sizes_are_resized(tmp_path):
    writer = VideoWriter(tmp_path / "odd.mp4", 25, (47, 63))
    writer.write(np.full((47, 63, 3), 90, np.uint8))
    writer.write(np.full((20, 30, 3), 90, np.uint8))
    writer.close()
    frames = read_video(tmp_path / "odd.mp4")
    assert [frame.image.shape for frame in frames] == [(48, 64, 3)] * 2
    assert all(abs(frame.image.astype(int) - 90).max() < 8 for frame in frames)


@pytest.mark.parametrize("codec", ["none", "x"])
def test_an_unavailable_codec_is_refused_and_leaves_no_file(tmp_path, codec):
    with pytest.raises(ConfigError, match=f"codec '{codec}' at 64 x 48; leave out --codec"):
        VideoWriter(tmp_path / "x.mp4", 25, (48, 64), codec)
    assert list(tmp_path.iterdir()) == []


def test_implausible_rates_are_replaced_by_the_default():
    rates = [0, -1, float("nan"), 90000, 29.97]
    assert [video._plausible_rate(rate) for rate in rates] == [25, 25, 25, 25, 29.97]


class FakeCapture:
    """Stands in for ``cv2.VideoCapture``: a camera of three images, each of which waits for ``requested``."""

    def __init__(self, index):
        self.index = index
        self.count = 0
        self.requested = threading.Semaphore(1)

    def isOpened(self):
        return self.index == 0

    def get(self, _):
        return 0.0

    def read(self):
        self.requested.acquire(timeout=5)
        self.count += 1
        return (True, np.full((4, 6, 3), self.count, np.uint8)) if self.count <= 3 else (False, None)

    def release(self): ...


def test_a_camera_yields_images_until_it_fails(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = Camera(0)
    items = []
    for item in camera:
        items.append(item)
        camera._capture.requested.release()
    camera.close()
    *frames, error = items
    assert [frame.number for frame in frames] == [0, 1, 2]
    assert [int(frame.image[0, 0, 0]) for frame in frames] == [1, 2, 3]
    assert "camera 0 delivers no more images" in str(error)


def test_a_camera_yields_the_newest_image(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = Camera(0)
    for _ in range(5):
        camera._capture.requested.release()
    camera._thread.join(5)
    assert int(next(iter(camera)).image[0, 0, 0]) == 3
    camera.close()


def test_a_missing_camera_is_refused(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    with pytest.raises(DataError, match="camera 1 cannot be opened"):
        Camera(1)


def test_write_until_repeats_frames_up_to_the_given_time(tmp_path):
    writer = VideoWriter(tmp_path / "live.mp4", 10, (48, 64))
    for seconds in (0.0, 0.5, 1.0):
        writer.write_until(GREY, seconds)
    writer.close()
    assert len(read_video(tmp_path / "live.mp4")) == 10
