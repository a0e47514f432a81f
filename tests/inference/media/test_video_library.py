"""Reading and writing videos, with each of the two libraries."""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.errors import ConfigError, DataError
from posenet.inference.media import video
from posenet.inference.media.video import FrameSelection, VideoFrame
from posenet.inference.media.video_library import open_video, open_video_writer
from tests.helpers.videos import full_disk, grey_image, read_video, write_media, write_video

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("suffix", sorted(video.WRITABLE_SUFFIXES))
def test_a_written_video_is_read_back_with_its_rate_size_and_times(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"bild ü{suffix}")
    reader = open_video(path, str(path))
    frames = list(reader.frames())
    reader.close()
    assert reader.rate == 10 and reader.frame_count == 12 and reader.aspect == 1
    assert [frame.number for frame in frames] == list(range(12))
    np.testing.assert_allclose([frame.seconds for frame in frames], np.arange(12) / 10, atol=2e-3)
    assert all(frame.image.shape == (48, 64, 3) for frame in frames)
    assert frames[8].image.mean() == pytest.approx(8 * 15 + 15, abs=6)
    assert list(tmp_path.iterdir()) == [path]


def test_colours_survive(tmp_path: Path) -> None:
    colours = [(200, 30, 40), (40, 200, 90), (30, 60, 210)]
    with open_video_writer(tmp_path / "x.mp4", (48, 64), 10) as writer:
        for number, colour in enumerate(colours):
            writer.write(np.full((48, 64, 3), colour, np.uint8), number / 10)
    means = [frame.image.mean((0, 1)) for frame in read_video(tmp_path / "x.mp4")]
    np.testing.assert_allclose(means, colours, atol=8)


@pytest.mark.parametrize("name", ["12:30.mp4", "we\\ird.mp4", "100%03d.mp4"])
def test_names_with_a_meaning_for_ffmpeg_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_video(tmp_path / name, count=3)
    monkeypatch.chdir(tmp_path)
    assert len(read_video(Path(name))) == 3


@pytest.mark.parametrize("suffix", [".ts", ".m2ts", ".3gp", ".flv", ".webm"])
def test_formats_that_are_only_read(tmp_path: Path, suffix: str) -> None:
    path = write_media(tmp_path / f"x{suffix}", codec="libvpx-vp9" if suffix == ".webm" else "libx264")
    assert path.suffix in video.VIDEO_SUFFIXES
    frames = read_video(path)
    assert [frame.number for frame in frames] == list(range(20))
    assert frames[-1].seconds == pytest.approx(1.9, abs=0.01)


@pytest.mark.parametrize("name, sound", [("x.mkv", "aac"), ("x.webm", "libopus")])
@pytest.mark.parametrize("delay", [0, 3])
def test_sound_that_is_longer_and_images_that_start_late_are_no_damage(
    tmp_path: Path, name: str, sound: str, delay: int
) -> None:
    codec = "libx264" if name.endswith("mkv") else "libvpx-vp9"
    times = delay + np.arange(20) / 10
    frames = read_video(write_media(tmp_path / name, times, codec=codec, sound=6, sound_codec=sound))
    assert len(frames) == 20 and all(isinstance(frame, VideoFrame) for frame in frames)
    assert frames[0].seconds == 0 and frames[-1].seconds == pytest.approx(1.9, abs=0.01)


def test_rotation_metadata_is_applied(tmp_path: Path) -> None:
    path = write_video(tmp_path / "phone.mp4")
    data = path.read_bytes()
    rotated, unrotated = (
        struct.pack(">9i", *(v << 16 for v in m), 1 << 30)
        for m in ((0, 1, 0, -1, 0, 0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0))
    )
    upright = read_video(path)[3].image
    track = data.index(b"tkhd")
    assert unrotated in data[track:]
    path.write_bytes(data[:track] + data[track:].replace(unrotated, rotated, 1))
    np.testing.assert_array_equal(read_video(path)[3].image, cv2.rotate(upright, cv2.ROTATE_90_CLOCKWISE))


def test_damaged_frames_are_reported_and_skipped(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", count=30, codec="mp4v")
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 3
    end = start + len(data) // 6
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    items = read_video(path)
    damaged = [number for number, item in enumerate(items) if isinstance(item, DataError)]
    assert damaged and isinstance(items[-1], VideoFrame)
    assert all(item.number == number for number, item in enumerate(items) if isinstance(item, VideoFrame))
    assert f"frame {damaged[0]} of {path}" in str(items[damaged[0]])


def test_a_video_that_was_cut_off_is_reported(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.avi", count=20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    *frames, error = read_video(path)
    assert 5 < len(frames) < 15 and f"{path} ends early: it has" in str(error)


@pytest.mark.parametrize(
    "content, message", [(None, "no such file"), (b"", r"is empty \(0 bytes\)"), (b"no video", "cannot be opened")]
)
def test_a_file_that_is_no_video_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"x.mp4.*{message}"):
        open_video(path, str(path))


def test_odd_sides_are_extended_and_frames_of_other_sizes_are_resized(tmp_path: Path) -> None:
    with open_video_writer(tmp_path / "odd.mp4", (47, 63), 25) as writer:
        writer.write(np.full((47, 63, 3), 90, np.uint8), 0.0)
        writer.write(np.full((20, 30, 3), 90, np.uint8), 0.04)
    frames = read_video(tmp_path / "odd.mp4")
    assert [frame.image.shape for frame in frames] == [(48, 64, 3)] * 2
    assert all(abs(frame.image.astype(int) - 90).max() < 8 for frame in frames)


def test_images_that_are_not_square_pixels_keep_their_shape(tmp_path: Path) -> None:
    with open_video_writer(tmp_path / "wide.mp4", (48, 64), 10, aspect=1.5) as writer:
        writer.write(grey_image(3), 0.0)
    reader = open_video(tmp_path / "wide.mp4", "wide.mp4")
    [frame] = reader.frames()
    height, width = frame.image.shape[:2]
    assert width * reader.aspect / height == pytest.approx(64 * 1.5 / 48)
    reader.close()


@pytest.mark.parametrize("codec", ["none", "x"])
def test_an_unavailable_codec_is_refused_and_leaves_no_file(tmp_path: Path, codec: str) -> None:
    with pytest.raises(ConfigError, match=f"codec '{codec}' at 64 x 48; leave out --codec"):
        with open_video_writer(tmp_path / "x.mp4", (48, 64), 25, codec=codec):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["mp4v", "MJPG"])
def test_codecs_have_the_same_names_in_both_libraries(tmp_path: Path, codec: str) -> None:
    assert len(read_video(write_video(tmp_path / "x.mkv", count=3, codec=codec))) == 3


@pytest.mark.parametrize("suffix", sorted(video.WRITABLE_SUFFIXES))
@pytest.mark.parametrize("size", [0, 1000, 20_000])
def test_a_full_disk_is_an_error_and_the_earlier_video_stays(tmp_path: Path, suffix: str, size: int) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"earlier")
    with full_disk(size), pytest.raises(OSError):
        write_video(path, count=60, size=(96, 128))
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


VARIABLE_TIMES = [0.0, 0.1, 0.2, 0.3, 0.6, 1.2, 1.8, 2.4]


def test_a_variable_rate_does_not_change_the_length(tmp_path: Path) -> None:
    with open_video_writer(tmp_path / "x.mp4", (48, 64), 8 / 2.5) as writer:
        for number, seconds in enumerate(VARIABLE_TIMES):
            writer.write(grey_image(number), seconds)
    reader = open_video(tmp_path / "x.mp4", "x.mp4")
    last = list(reader.frames())[-1]
    assert last.seconds == pytest.approx(2.4, abs=0.3) and last.image.mean() == pytest.approx(7 * 15 + 15, abs=6)
    reader.close()


@pytest.mark.parametrize("suffix", [".mp4", ".avi", ".mkv"])
def test_a_part_of_a_video_has_the_numbers_and_times_of_the_whole(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"x{suffix}", count=40)
    frames = read_video(path)
    part = read_video(path, FrameSelection(start=1.45, duration=1.0, stride=3))
    assert [frame.number for frame in part] == [15, 18, 21, 24]
    for frame in part:
        assert frame.seconds == pytest.approx(frames[frame.number].seconds)
        np.testing.assert_array_equal(frame.image, frames[frame.number].image)


def test_a_start_after_the_end_is_an_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "x.mp4", count=5)
    [error] = read_video(path, FrameSelection(start=7))
    assert str(error) == f"{path} has no frame after 7 s; the last is at 0.40 s"


def test_a_link_to_a_video_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target.mp4"
    target.write_bytes(b"old")
    link = tmp_path / "link.mp4"
    link.symlink_to(target)
    with open_video_writer(link, (48, 64), 10.0) as writer:
        writer.write(grey_image(0), 0.0)
    assert link.is_symlink()
    assert target.stat().st_size > 100
