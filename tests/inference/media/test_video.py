"""Videos in and out, and cameras."""

import struct
import threading

import cv2
import numpy as np
import pytest

from posenet.errors import ConfigError, DataError
from posenet.inference.media import video
from posenet.inference.media.video import Camera, VideoFile, VideoWriter


def write_video(path, count=12, size=(48, 64), rate=10.0, codec="mp4v"):
    """Grey frames that grow lighter, with noise, so that every one takes some bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, noise = VideoWriter(path, rate, size, codec), np.random.default_rng(0)
    for i in range(count):
        writer.write(np.clip(noise.integers(0, 30, (*size, 3)) + 15 * i, 0, 255).astype(np.uint8))
    writer.close()
    return path


def shots(path):
    reader = VideoFile(path)
    try:
        return list(reader)
    finally:
        reader.close()


@pytest.mark.parametrize("suffix", sorted(video.WRITTEN))
def test_a_video_comes_back_with_its_rate_size_and_times(tmp_path, suffix):
    path = write_video(tmp_path / f"bild ü{suffix}")
    reader = VideoFile(path)
    found = list(reader)
    reader.close()
    assert reader.rate == 10 and reader.count == 12
    assert [number for number, _, _ in found] == list(range(12))
    np.testing.assert_allclose([seconds for _, seconds, _ in found], np.arange(12) / 10, atol=2e-3)
    assert all(image.shape == (48, 64, 3) for _, _, image in found)
    assert found[8][2].mean() == pytest.approx(8 * 15 + 15, abs=6)
    assert list(tmp_path.iterdir()) == [path]


def test_rotation_is_honoured(tmp_path):
    path = write_video(tmp_path / "phone.mp4")
    data = path.read_bytes()
    turned, straight = (
        struct.pack(">9i", *(v << 16 for v in m), 1 << 30)
        for m in ((0, 1, 0, -1, 0, 0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0))
    )
    track = data.index(b"tkhd")
    assert straight in data[track:]
    path.write_bytes(data[:track] + data[track:].replace(straight, turned, 1))
    assert shots(path)[0][2].shape == (64, 48, 3)


def test_damaged_frames_are_told_and_passed_over(tmp_path):
    path = write_video(tmp_path / "clip.mp4", count=30)
    data = bytearray(path.read_bytes())
    third, half = len(data) // 3, len(data) // 2
    data[third:half] = bytes(half - third)
    path.write_bytes(data)
    found = shots(path)
    bad = [number for number, _, image in found if isinstance(image, DataError)]
    assert bad and max(bad) < 29 and not isinstance(found[-1][2], DataError)
    assert [number for number, _, _ in found] == list(range(len(found)))
    assert f"frame {bad[0]} of {path}" in str(found[bad[0]][2])


def test_a_video_that_was_cut_off_says_so(tmp_path):
    path = write_video(tmp_path / "clip.avi", count=20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    *sound, (_, _, error) = shots(path)
    assert 5 < len(sound) < 15 and f"{path} ends early: it has {len(sound)} of 20 frames" in str(error)


@pytest.mark.parametrize("content", [None, b"", b"no video"])
def test_what_is_no_video_is_refused(tmp_path, content):
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="x.mp4"):
        VideoFile(path)


def test_odd_sides_grow_by_a_pixel_and_other_sizes_are_resized(tmp_path):
    writer = VideoWriter(tmp_path / "odd.mp4", 25, (47, 63))
    writer.write(np.full((47, 63, 3), 90, np.uint8))
    writer.write(np.full((20, 30, 3), 90, np.uint8))
    writer.close()
    found = shots(tmp_path / "odd.mp4")
    assert [image.shape for _, _, image in found] == [(48, 64, 3)] * 2
    assert all(abs(image.astype(int) - 90).max() < 8 for _, _, image in found)


@pytest.mark.parametrize("codec", ["none", "x"])
def test_a_codec_that_is_not_there_is_one_clear_line(tmp_path, codec, capfd):
    with pytest.raises(ConfigError, match=f"codec '{codec}' at 64 x 48; leave out --codec"):
        VideoWriter(tmp_path / "x.mp4", 25, (48, 64), codec)
    assert list(tmp_path.iterdir()) == []


def test_an_unbelievable_rate_becomes_a_usual_one():
    assert [video._sound(rate) for rate in (0, -1, float("nan"), 90000, 29.97)] == [25, 25, 25, 25, 29.97]


class FakeCapture:
    """A camera of three images, each of which waits until it is wanted."""

    def __init__(self, index):
        self.index, self.given, self.wanted = index, 0, threading.Semaphore(1)

    def isOpened(self):
        return self.index == 0

    def get(self, _):
        return 0.0

    def read(self):
        self.wanted.acquire(timeout=5)
        self.given += 1
        return (True, np.full((4, 6, 3), self.given, np.uint8)) if self.given <= 3 else (False, None)

    def release(self): ...


def test_a_camera_gives_its_pictures_until_it_fails(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = Camera(0)
    found = []
    for shot in camera:
        found.append(shot)
        camera._capture.wanted.release()
    camera.close()
    assert [number for number, _, _ in found] == [0, 1, 2, 2]
    assert [int(image[0, 0, 0]) for _, _, image in found[:3]] == [1, 2, 3]
    assert "camera 0 gives no more images" in str(found[3][2])


def test_a_camera_shows_the_present(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    camera = Camera(0)
    for _ in range(5):
        camera._capture.wanted.release()
    camera._thread.join(5)
    assert int(next(iter(camera))[2][0, 0, 0]) == 3
    camera.close()


def test_a_camera_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(cv2, "VideoCapture", FakeCapture)
    with pytest.raises(DataError, match="camera 1 cannot be opened"):
        Camera(1)


def test_what_comes_slowly_is_played_at_its_own_pace(tmp_path):
    writer = VideoWriter(tmp_path / "live.mp4", 10, (48, 64))
    for seconds in (0.0, 0.5, 1.0):
        writer.write_until(np.full((48, 64, 3), 90, np.uint8), seconds)
    writer.close()
    assert len(shots(tmp_path / "live.mp4")) == 10
