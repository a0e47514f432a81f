"""What inputs name: files, folders, patterns, addresses, cameras and lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.media.frames import Source, find_sources, parse_standard_input, read_frames
from tests.helpers.image_bytes import encode
from tests.helpers.media_server import answer, media_server, raw_server
from tests.helpers.videos import GREY, write_animation, write_video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_image(tmp_path / "in" / "000000000139.png", GREY)
    write_image(tmp_path / "in" / "b.png", GREY)
    (tmp_path / "in" / "clip.mp4").write_bytes(b"not read here")
    return tmp_path / "in"


def test_every_source_is_found_once_in_the_given_order(folder: Path) -> None:
    listed = parse_standard_input(f"{folder / 'clip.mp4'}\nmissing.jpg\n".encode())
    found = find_sources([folder, folder / "b.png", "7", *listed, "7"])
    assert [(source.kind, source.name) for source in found] == [
        ("image", str(folder / "000000000139.png")),
        ("image", str(folder / "b.png")),
        ("video", str(folder / "clip.mp4")),
        ("camera", "camera 7"),
        ("image", "missing.jpg"),
    ]
    with pytest.raises(DataError, match="missing"):
        find_sources([folder / "missing.jpg"])


def test_a_file_with_several_names_is_found_once_by_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "link.png").symlink_to("b.png")
    assert [source.name for source in find_sources(["link.png", folder / "b.png", "../in/b.png"])] == ["link.png"]


def test_a_number_is_a_camera_unless_a_file_has_that_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "b.png").rename(folder / "5")
    assert [source.kind for source in find_sources(["5", "6"])] == ["image", "camera"]
    with pytest.raises(DataError, match="no such file or folder: 99999999999"):
        find_sources(["99999999999"])  # no camera can have this number


def test_addresses_and_device_files_are_sources() -> None:
    names = ["https://me:secret@host/a/b.JPG?size=2", "rtsp://host:554/live", "/dev/video3", "http://host/clip.mp4"]
    by_path = Source("camera", "/dev/v4l/by-path/pci-0000:00:14.0-usb-0:1:1.2")
    assert by_path.stem == "camera-pci-0000:00:14.0-usb-0:1:1.2"
    assert [(source.kind, source.name, source.stem, source.suffix.lower()) for source in find_sources(names)] == [
        ("image", "https://host/a/b.JPG?size=2", "b", ".jpg"),
        ("video", "rtsp://host:554/live", "live", ""),
        ("camera", "camera /dev/video3", "camera-video3", ""),
        ("video", "http://host/clip.mp4", "clip", ".mp4"),
    ]


@pytest.mark.parametrize("data", ["a.png\nb.mp4\r\n\n", " a.png \n\t\nb.mp4", "\ufeffa.png\nb.mp4\n", "a.png\0b.mp4\0"])
def test_a_list_has_lines_or_nuls(data: str) -> None:
    sources = parse_standard_input(data.encode())
    assert [(source.kind, source.name) for source in sources] == [("image", "a.png"), ("video", "b.mp4")]


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(DataError, match="no list of files"):
        parse_standard_input(encode(np.zeros((8, 8, 3), np.uint8)))


def test_the_first_bytes_say_what_is_at_an_address_without_a_known_suffix(folder: Path) -> None:
    """Not the type that the server sends."""
    photo = (folder / "b.png").read_bytes()
    gif = write_animation(folder / "x.gif", 3).read_bytes()
    webp = write_animation(folder / "x.webp", 3).read_bytes()
    header = "Content-Type: application/octet-stream"
    for body, kind in ((photo, "image"), (gif, "video"), (webp, "video"), (b"--image\r\n", "video")):
        with raw_server(answer(header, body=body)) as server:
            addresses = [f"{server.address}/photo?id=3", f"{server.address}/b.gif"]
            assert [source.kind for source in find_sources(addresses)] == [kind] * 2
    with media_server(folder) as address:
        (folder / "photo").write_bytes(photo)
        known = [f"{address}/{name}" for name in ("live", "photo", "missing", "x.webp")]
        assert [source.kind for source in find_sources(known)] == ["video", "image", "video", "video"]
    assert [source.kind for source in find_sources([f"{address}/photo", "http://[::1/x"])] == ["video"] * 2
    pytest.importorskip("av", reason="needs PyAV (the extra video)")
    [frame] = read_frames("http://[::1/x")
    assert "the address is malformed" in str(frame.error)


def test_ffmpeg_says_whether_a_named_file_of_an_unknown_suffix_is_a_video(folder: Path) -> None:
    av = pytest.importorskip("av", reason="needs PyAV (the extra video)")
    write_video(folder / "a.mkv", count=3).rename(folder / "a.recording")
    (folder / "b.png").rename(folder / "b.unknown")
    (folder / "c.txt").write_text("no video\n" * 100)
    names = [folder / name for name in ("a.recording", "b.unknown", "c.txt")]
    assert [source.kind for source in find_sources(names)] == ["video", "image", "video"]
    [text] = read_frames(names[2])
    assert "c.txt has no images" in str(text.error)
    assert [frame.number for frame in read_frames(folder / "a.recording")] == [0, 1, 2]
    with av.open(str(folder / "a.recording")) as container, av.open(str(folder / "d.recording"), "w", "mp4") as copy:
        copy.metadata["title"] = "in Latin-1"
        stream = copy.add_stream_from_template(container.streams.video[0])
        for packet in container.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                copy.mux(packet)
    (folder / "d.recording").write_bytes((folder / "d.recording").read_bytes().replace(b"in Latin", b"in \xe9atin"))
    assert [frame.number for frame in read_frames(folder / "d.recording")] == [0, 1, 2]


@pytest.mark.parametrize("name", ["data:image/png;base64," + "A" * 70_000, "A" * 70_000, "a\0b.png", ""])
def test_what_is_no_name_of_an_input_is_a_short_error(name: str) -> None:
    with pytest.raises(DataError) as caught:
        find_sources([name])
    assert len(str(caught.value)) < 200
    assert ("is a data: address" in str(caught.value)) == name.startswith("data:")


def test_a_web_page_at_an_address_is_named(tmp_path: Path) -> None:
    for name in ("watch", "a.jpg"):
        (tmp_path / name).write_text("<!DOCTYPE html><html><body>a video</body></html>")
    with media_server(tmp_path) as server:
        for frame in read_frames([f"{server}/watch", f"{server}/a.jpg"]):
            assert "is a web page" in str(frame.error)
