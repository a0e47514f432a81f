"""The names of drawings: unique, in formats that can be written, and not too long."""

from __future__ import annotations

from pathlib import Path

from posenet.inference.media.sources import Source, find_sources, parse_standard_input
from posenet.inference.outputs.output_files import drawing_suffix, output_paths

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


def test_long_names_are_shortened_and_stay_unique(tmp_path: Path) -> None:
    stem = "x" * 252
    sources = [Source("image", Path("in", name)) for name in (stem + ".jp", "x" * 251 + ".jpg")]
    sources += [Source("video", Path("in", stem + ".ts")), Source("image", Path("in", "y" * 241 + ".jpg"))]
    sources.append(Source("image", Path("other", "x" * 251 + ".jpg")))
    names = [path.name for path in output_paths(sources, tmp_path, drawing_suffix).values()]
    unnumbered = ["x" * 251 + ".png", "x" * 251 + ".jpg", "x" * 251 + ".mp4", "y" * 241 + ".jpg"]
    assert names == [*unnumbered, "x" * 249 + "-2.jpg"]
