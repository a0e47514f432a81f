"""Drawn images and videos, and their names."""

from pathlib import Path

import pytest

from posenet.inference.media.outputs import DrawingWriter, drawing_suffix, output_paths
from posenet.inference.media.sources import CameraSource, FileSource, Frame, find_sources
from tests.helpers.videos import GREY, read_video, write_video

CAMERA = CameraSource(2)


def test_output_names_are_unique_and_have_writable_formats(tmp_path):
    sources = [*find_sources(["-"], ["a.jpg", "x/A.JPG", "a.mp4", "b.webm", "c.raw", "d.pgm"]), CAMERA]
    sources += find_sources(["-", "/dev/video0"], ["http://host/clip.mp4?a=b", "rtsp://me:secret@host:554/"])
    paths = output_paths(sources, tmp_path, drawing_suffix)
    names = [paths[source].name for source in sources]
    assert names == [
        "a.jpg",
        "A-2.JPG",
        "a.mp4",
        "b.mp4",
        "c.png",
        "d.png",
        "camera-2.mp4",
        "clip.mp4",
        "host.mp4",
        "camera-video0.mp4",
    ]
    assert {path.parent for path in paths.values()} == {tmp_path}


def test_drawings_of_subfolders_go_into_subfolders(tmp_path):
    subfolders = ("cam", "", "Cam")
    sources = [FileSource("image", Path("in", str(i), "1.png"), Path(name)) for i, name in enumerate(subfolders)]
    paths = output_paths(sources, tmp_path, drawing_suffix)
    assert [str(path.relative_to(tmp_path)) for path in paths.values()] == ["cam/1.png", "1.png", "Cam/1-2.png"]


def test_a_drawn_video_is_finished_when_the_next_source_starts(library, tmp_path):
    video = FileSource("video", tmp_path / "in" / "clip.mp4")
    write_video(video.path)
    paths = output_paths([video, CAMERA], tmp_path, drawing_suffix)
    with DrawingWriter(paths) as writer:
        for number in range(3):
            writer.write(Frame(video, GREY, number, number / 10, 10.0), [], GREY)
        assert not paths[video].exists()
        writer.write(Frame(CAMERA, GREY, 0, 0.0, 10.0), [], GREY)
        assert len(read_video(paths[video])) == 3
        writer.write(Frame(CAMERA, GREY, 1, 0.8, 10.0), [], GREY)
    assert read_video(paths[CAMERA])[-1].seconds == pytest.approx(0.8, abs=1e-3), "the pace is that of the camera"


def test_after_an_error_the_earlier_video_stays(library, tmp_path):
    paths = {CAMERA: tmp_path / "camera-2.mp4"}
    paths[CAMERA].write_bytes(b"earlier")
    with pytest.raises(OSError, match="of another output"):
        with DrawingWriter(paths) as writer:
            writer.write(Frame(CAMERA, GREY, 0, 0.0, 10.0), [], GREY)
            raise OSError("of another output")
    assert paths[CAMERA].read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [paths[CAMERA]]
