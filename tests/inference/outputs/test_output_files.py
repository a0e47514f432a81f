"""The names of drawings: unique, in formats that can be written, and not too long; drawn videos, and the window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import ConfigError
from posenet.inference.media.frames import Frame, Source, find_sources, parse_standard_input
from posenet.inference.outputs.output_files import (
    drawing_suffix,
    output_paths,
    require_display,
    show_in_window,
    write_drawing,
)
from tests.helpers.videos import GREY, full_disk, install_window, read_video

CAMERA = Source("camera", 2)


def test_output_names_are_unique_and_have_writable_formats(tmp_path: Path) -> None:
    listed = parse_standard_input(b"a.jpg\nx/A.JPG\na.mp4\nb.webm\nc.raw\nd.pgm\ne.gif\ne.mp4\n")
    sources = [*listed, CAMERA]
    sources += find_sources(["/dev/video0", "http://host/clip.mp4?a=b", "rtsp://me:secret@host:554/"])
    paths = output_paths(sources, tmp_path, drawing_suffix)
    assert [str(path.relative_to(tmp_path)) for path in paths.values()] == [
        *("a.jpg", "A-2.JPG", "a.mp4", "b.mp4", "c.png", "d.png"),
        *("e.png", "e.mp4", "camera-2.mp4", "camera-video0.mp4", "clip.mp4", "host.mp4"),
    ]


def test_a_drawn_video_is_there_when_it_is_complete(tmp_path: Path) -> None:
    video = Source("video", tmp_path / "in" / "clip.mp4")
    path = output_paths([video], tmp_path, drawing_suffix)[video]
    with write_drawing(path) as write:
        for number in range(3):
            write(Frame(video, GREY, number, number / 10, 10.0, aspect=1.5), GREY)
        assert not path.exists()
    assert [(frame.rate, frame.aspect) for frame in read_video(tmp_path / "clip.mp4")] == [(10, 1.5)] * 3
    path = output_paths([CAMERA], tmp_path, drawing_suffix)[CAMERA]
    with write_drawing(path) as write:
        for seconds in (0.0, 0.8):
            write(Frame(CAMERA, GREY, round(seconds), seconds, 10.0), GREY)
    pace = read_video(tmp_path / "camera-2.mp4")[-1].seconds
    assert pace == pytest.approx(0.8, abs=1e-3), "the pace is that of the camera"


@pytest.mark.parametrize("size", [0, 1000, 20_000])
def test_after_an_error_the_earlier_video_stays(tmp_path: Path, size: int) -> None:
    path = tmp_path / "camera-2.mp4"
    path.write_bytes(b"earlier")
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8)
    with full_disk(size), pytest.raises(OSError):
        with write_drawing(path) as write:
            for number in range(10):
                write(Frame(CAMERA, noise, number, number / 10, 10.0), noise)
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


def test_a_missing_display_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match=r"needs a display, and OpenCV cannot open a window here \(DISPLAY=:77;"):
        require_display()


@pytest.mark.parametrize(
    "number, keys, is_visible, closed",
    [
        (0, [ord("q")], True, True),
        (0, [27], True, True),
        (0, [ord("n")], True, False),
        (0, [-1], False, True),
        (None, [-1, -1, -1, ord("n")], True, False),
        (None, [-1], False, True),
        (None, [-1, -1, -1], True, False),
    ],
    ids=["q", "escape", "other key", "closed by hand", "an image until a key", "until it is closed", "until a request"],
)
def test_when_a_window_is_closed(
    monkeypatch: pytest.MonkeyPatch, number: int | None, keys: list[int], is_visible: bool, closed: bool
) -> None:
    pressed = list(keys)
    shown = install_window(monkeypatch, lambda: pressed.pop(0), is_visible)
    closings: list[bool] = []
    with show_in_window(lambda: keys == [-1] * 3 and not pressed, lambda: closings.append(True)) as show:
        show(Frame(CAMERA, GREY, number), GREY)
        assert bool(closings) == closed and len(shown) == 1 and not pressed
