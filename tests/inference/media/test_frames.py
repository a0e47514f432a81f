"""What inputs name: files, folders, patterns, addresses, cameras and lists; and their frames."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from posenet.errors import ConfigError, DataError
from posenet.images import write_image
from posenet.inference.media.frames import FrameSelection, Source, find_sources, parse_standard_input, read_frames
from tests.helpers.image_bytes import encode
from tests.helpers.media_server import answer, media_server, raw_server
from tests.helpers.videos import GREY, write_animation, write_media, write_video


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
    (folder / "cut.gif").write_bytes(gif[: len(gif) // 2])
    (folder / "none.gif").write_bytes(gif[:10])
    write_image(folder / "one.tif", np.zeros((8, 8, 3), np.uint8))
    files = [folder / name for name in ("cut.gif", "none.gif", "one.tif")]
    assert [source.kind for source in find_sources(files)] == ["video", "image", "image"]


def test_a_named_pipe_as_standard_input_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    command = [sys.executable, "-c", "from posenet.images import find_images; find_images(['/dev/stdin'])"]
    with open(os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as pipe:  # nobody writes into it
        run = subprocess.run(command, stdin=pipe, capture_output=True, text=True, timeout=60)
    assert "no such file or folder: /dev/stdin" in run.stderr


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


def test_frames_come_in_the_order_of_the_inputs_with_errors_among_them(tmp_path: Path) -> None:
    for number in range(30):
        write_image(tmp_path / f"{number}.png", np.full((2, 2, 3), number, np.uint8))
    (tmp_path / "7.png").write_bytes(b"no image")
    clip = write_video(tmp_path / "clip.mp4", count=5)
    names = [*(f"{number}.png" for number in range(30)), "missing.mp4", "clip.mp4", "missing.jpg"]
    sources = parse_standard_input("\n".join(str(tmp_path / name) for name in names).encode())
    frames = list(read_frames(sources))
    assert [frame.source for frame in frames] == [*sources[:31], *[sources[31]] * 5, sources[32]]
    values = [None if frame.error else int(frame.image[0, 0, 0]) for frame in frames[:30]]
    assert values == [None if number == 7 else number for number in range(30)]
    assert [
        str(frame.error) for frame in frames if frame.error and str(frame.source.path) not in str(frame.error)
    ] == []
    video = frames[31:36]
    assert [frame.number for frame in video] == list(range(5)) and frames[0].number is None
    assert video[-1].rate == 10 and video[-1].seconds == pytest.approx(0.4)
    selection = FrameSelection(start=0.15, duration=0.25, stride=2)
    assert [frame.number for frame in read_frames(clip, selection=selection)] == [2]


def test_a_small_copy_in_a_tiff_file_is_no_page(tmp_path: Path) -> None:
    images = [Image.fromarray(np.full((48, 64, 3), value, np.uint8)) for value in (90, 200)]
    images[1].encoderinfo = {"tiffinfo": {254: 1}}
    images[0].save(tmp_path / "a.tif", save_all=True, append_images=images[1:])
    [frame] = read_frames(tmp_path / "a.tif")
    assert frame.number is None and (frame.image == 90).all()


class Strange(Exception):
    """What a library might raise."""


FAULTS = {
    "images": ("posenet.inference.media.frames.decode_reduced_image", "a.png"),
    "OpenCV": ("cv2.imdecode", "a.png"),
    "FFmpeg": ("av.open", "a.mp4"),
    "a frame": ("av.VideoFrame.to_ndarray", "a.mp4"),
    "a conversion": ("posenet.inference.media.video.VideoReformatter.reformat", "a.mp4"),
    "packets": ("posenet.inference.media.video.PyAVReader._read_packets", "a.mp4"),
    "times": ("posenet.inference.media.video._time_shown", "a.mp4"),
    "side data": ("posenet.inference.media.video._orientation_of", "a.mp4"),
}


@pytest.mark.parametrize("error", [Strange, MemoryError])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_library_raises_is_the_error_of_that_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[Exception]
) -> None:
    pytest.importorskip("av", reason="needs PyAV (the extra video)")
    place, name = FAULTS[fault]
    write_image(tmp_path / "a.png", GREY)
    write_video(tmp_path / "a.mp4", count=3)

    def fail(*_: object, **__: object) -> None:
        raise error("something\nstrange")

    others = [GREY, GREY + 1]
    owner, _, attribute = place.rpartition(".")
    try:
        monkeypatch.setattr(place, fail)
    except TypeError:  # a class of C cannot be changed: its stand-in fails
        pytest.skip(f"{owner}.{attribute} cannot be replaced")
    first, *failed, last = read_frames([others[0], str(tmp_path / name), others[1]])
    assert (first.image == others[0]).all() and (last.image == others[1]).all()
    assert failed and all(frame.error and name in str(frame.error) for frame in failed)
    assert not any("\n" in str(frame.error) for frame in failed)


def test_images_and_videos_are_read_from_a_server(tmp_path: Path) -> None:
    """A password may have any signs. This server sends no parts of files; a GIF states no length, but is not live."""
    write_image(tmp_path / "b.png", GREY)
    write_video(tmp_path / "clip.mp4", count=5)
    write_media(tmp_path / "clip.avi", np.arange(5) / 10)
    write_animation(tmp_path / "x.gif", count=5)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with media_server(tmp_path) as server:
        address = server.replace("://", "://user:p[w@")
        names = ["b.png", "clip.mp4", "clip.avi", "x.gif", "missing.png", "missing.mp4", "broken.mp4"]
        image, *frames = read_frames([f"{address}/{name}" for name in names])
    assert image.number is None and image.image.shape == GREY.shape
    assert [frame.number for frame in frames[:-3]] == 3 * list(range(5))
    assert not any(frame.is_live or frame.error for frame in frames[:-3])
    assert (frames[0].source.stem, frames[0].source.suffix) == ("clip", ".mp4")
    for frame, name, reason in zip(frames[-3:], names[-3:], ["404", "404", "check the address, or download it"]):
        assert f"{server}/{name}" in str(frame.error) and reason in str(frame.error)


def test_videos_need_pyav_and_images_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "b.png", GREY)
    (tmp_path / "clip.mp4").write_bytes(b"anything")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(list(read_frames(tmp_path / "b.png"))) == 1
    with pytest.raises(ConfigError, match=r"PyAV.*simplepose\[video\]"):
        list(read_frames(tmp_path / "clip.mp4"))
