"""From inputs to frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.media.sources import (
    CameraSource,
    Frame,
    UnreadableFrame,
    count_frames,
    find_sources,
    read_frames,
)
from tests.helpers.media_server import media_server
from tests.helpers.videos import GREY, write_video


@pytest.fixture
def folder(tmp_path):
    write_image(tmp_path / "in" / "000000000139.png", GREY)
    write_image(tmp_path / "in" / "b.png", GREY)
    write_video(tmp_path / "in" / "clip.mp4", count=5)
    return tmp_path / "in"


def test_every_source_is_found_once_in_the_given_order(folder):
    found = find_sources(
        [str(folder), str(folder / "b.png"), "7", "-"],
        [str(folder / "clip.mp4"), "missing.jpg"],
        cameras=[7, 8],
    )
    assert [(source.kind, source.name) for source in found] == [
        ("image", str(folder / "000000000139.png")),
        ("image", str(folder / "b.png")),
        ("video", str(folder / "clip.mp4")),
        ("camera", "camera 7"),
        ("image", "missing.jpg"),
        ("camera", "camera 8"),
    ]


def test_a_number_is_a_camera_unless_a_file_has_that_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "b.png").rename(folder / "5")
    assert [source.kind for source in find_sources(["5", "6"])] == ["image", "camera"]


def test_addresses_and_device_files_are_sources():
    found = find_sources(
        ["https://me:secret@host/a/b.JPG?size=2", "rtsp://host:554/live", "/dev/video3", "-"],
        ["http://host/clip.mp4", "/dev/video3"],
    )
    assert [(source.kind, source.name, source.stem, source.suffix) for source in found[:4]] == [
        ("image", "https://host/a/b.JPG?size=2", "b", ".jpg"),
        ("video", "rtsp://host:554/live", "live", ""),
        ("camera", "camera /dev/video3", "camera-video3", ""),
        ("video", "http://host/clip.mp4", "clip", ".mp4"),
    ]


def test_images_and_videos_are_read_from_a_server(library, folder):
    with media_server(folder) as address:
        urls = [f"{address}/b.png", f"{address}/clip.mp4", f"{address}/missing.png", f"{address}/missing.mp4"]
        image, *video, missing_image, missing_video = read_frames(find_sources(urls))
    assert image.number is None and image.image.shape == GREY.shape
    assert [frame.number for frame in video] == list(range(5)) and not video[0].is_live
    assert "missing.png" in str(missing_image.error) and "404" in str(missing_image.error)
    assert "missing.mp4 cannot be opened" in str(missing_video.error)


def test_a_missing_input_is_refused(folder):
    with pytest.raises(DataError, match="missing"):
        find_sources([str(folder / "missing.jpg")])


def test_frames_come_in_the_order_of_the_sources_with_errors_among_them(folder):
    sources = find_sources(["-"], map(str, [folder / "b.png", "missing.jpg", "missing.mp4", folder / "clip.mp4"]))
    image, missing_image, missing_video, *video = read_frames(sources)
    assert isinstance(image, Frame) and image.number is None
    assert isinstance(missing_image, UnreadableFrame) and "missing.jpg" in str(missing_image.error)
    assert isinstance(missing_video, UnreadableFrame) and "missing.mp4" in str(missing_video.error)
    assert [frame.number for frame in video] == list(range(5))
    assert video[-1].rate == 10 and video[-1].seconds == pytest.approx(0.4)
    assert [frame.source for frame in (image, missing_image, missing_video, video[0])] == sources


def test_images_are_read_ahead_in_order_with_errors_among_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(30)]
    for number, path in enumerate(paths):
        if number != 7:
            write_image(path, np.full((2, 2, 3), number, np.uint8))
    frames = list(read_frames(find_sources(["-"], map(str, paths))))
    values = [int(frame.image[0, 0, 0]) if isinstance(frame, Frame) else str(frame.error) for frame in frames]
    assert str(paths[7]) in str(values.pop(7))
    assert values == [number for number in range(30) if number != 7]


def test_frames_are_counted_unless_a_source_does_not_know(folder):
    sources = find_sources(["-"], map(str, [folder / "b.png", "missing.jpg", "missing.mp4", folder / "clip.mp4"]))
    assert count_frames(sources) == 8
    assert count_frames([*sources, CameraSource(2)]) is None
