"""Videos through PyAV: numbers, times, colours, rotation, damage; and what is written."""

import contextlib
import itertools
import math
import os
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import decode_image
from posenet.inference.media.frames import VIDEO_SUFFIXES, Frame, FrameSelection, Source, read_frames
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.media_server import IMAGES_PER_CONNECTION, media_server
from tests.helpers.videos import FakeCapture, grey_image, read_video, write_animation, write_media, write_video

av = pytest.importorskip("av", reason="needs PyAV (the extra video)")
video = pytest.importorskip("posenet.inference.media.video")

VARIABLE_TIMES = [0.0, 0.04, 0.1, 0.15, 0.6, 1.2, 1.81, 2.4]


def test_a_written_video_is_read_back_with_its_rate_size_and_times(tmp_path: Path) -> None:
    path = write_video(tmp_path / "bild ü.mp4")
    frames = read_video(path)
    assert [(frame.number, frame.error) for frame in frames] == [(number, None) for number in range(12)]
    assert frames[0].rate == 10 and frames[0].aspect == 1
    assert [frame.expected for frame in frames] == list(range(12, 0, -1))
    np.testing.assert_allclose([frame.seconds for frame in frames], np.arange(12) / 10, atol=2e-3)
    assert all(frame.image.shape == (48, 64, 3) for frame in frames)
    assert frames[8].image.mean() == pytest.approx(8 * 15 + 15, abs=6)
    part = read_video(path, start=0.35, duration=0.7, stride=3)
    assert [frame.number for frame in part] == [4, 7, 10] and part[1].expected == 1
    for frame in part:
        np.testing.assert_array_equal(frame.image, frames[frame.number or 0].image)
        assert frame.seconds == pytest.approx(frames[frame.number or 0].seconds)


def test_every_image_keeps_its_time(tmp_path: Path) -> None:
    images = [grey_image(number) for number in range(8)]
    # Those of a video of which the first seconds are skipped do not begin at 0.
    path = tmp_path / "x.mp4"
    with contextlib.closing(video.VideoWriter(path, (48, 64), 8 / 2.5)) as writer:
        for image, seconds in zip(images, VARIABLE_TIMES):
            writer.write(image, 7 + seconds)
    np.testing.assert_allclose([frame.seconds for frame in read_video(path)], VARIABLE_TIMES, atol=1e-3)
    with av.open(str(path)) as container:
        assert container.start_time == 0
        assert container.duration / 1e6 == pytest.approx(2.4 + 2.5 / 8, abs=0.05)


def test_browsers_can_show_the_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "x.mp4", size=(47, 63))
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.width, stream.height) == ("h264", "yuv420p", 64, 48)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "the index comes first"


@pytest.mark.parametrize("name", ["12:30.mp4", "we\\ird.mp4", "100%03d.mp4"])
def test_names_with_a_meaning_for_ffmpeg_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_video(tmp_path / name, count=3)
    monkeypatch.chdir(tmp_path)
    assert len(read_video(Path(name))) == 3


@pytest.mark.parametrize(
    "suffix, codec, pixels",
    [
        (".ts", "libx264", "yuv420p"),
        (".3gp", "libx264", "yuv420p"),
        (".flv", "libx264", "yuv420p"),
        (".webm", "libvpx-vp9", "yuv420p"),
        (".mp4", "libsvtav1", "yuv420p10le"),
        (".mp4", "libx265", "yuv420p10le"),
    ],
)
def test_other_formats_and_codecs_are_read(tmp_path: Path, suffix: str, codec: str, pixels: str) -> None:
    assert suffix in VIDEO_SUFFIXES
    frames = read_video(write_media(tmp_path / f"x{suffix}", codec=codec, pixels=pixels))
    assert [frame.number for frame in frames] == list(range(20))
    assert frames[-1].seconds == pytest.approx(1.9, abs=0.01)
    assert frames[8].image.dtype == np.uint8 and frames[8].image.mean() == pytest.approx(8 * 15 + 15, abs=8)


@pytest.mark.parametrize("delay", [0, 3])
def test_sound_that_is_longer_and_images_that_start_late_are_no_damage(tmp_path: Path, delay: int) -> None:
    frames = read_video(write_media(tmp_path / "x.mkv", delay + np.arange(20) / 10, sound=6))
    assert len(frames) == 20 and not any(frame.error for frame in frames)
    assert frames[0].seconds == 0 and frames[-1].seconds == pytest.approx(1.9, abs=0.01)


def with_display_matrix(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """The bytes of an MP4 file that shows the pixel (x, y) at (a x + c y, b x + d y), for the matrix (a, b, c, d)."""
    a, b, c, d = (value << 16 for value in matrix)
    old, new = struct.pack(">5i", 1 << 16, 0, 0, 0, 1 << 16), struct.pack(">5i", a, b, 0, c, d)
    track = data.index(b"tkhd")
    assert old in data[track:]
    return data[:track] + data[track:].replace(old, new, 1)


QUARTER_TURN, HALF_TURN = (0, 1, -1, 0), (-1, 0, 0, -1)


@pytest.mark.parametrize("matrix", [QUARTER_TURN, HALF_TURN, (0, -1, 1, 0), (-1, 0, 0, 1), (0, 1, 1, 0)], ids=str)
def test_videos_are_turned_and_mirrored_as_their_metadata_say(
    tmp_path: Path, matrix: tuple[int, int, int, int]
) -> None:
    path = write_video(tmp_path / "phone.mp4")
    stored = read_video(path)[3].image
    path.write_bytes(with_display_matrix(path.read_bytes(), matrix))
    shown = read_video(path)[3].image
    # Every corner is at the place to which the matrix moves it.
    height, width = stored.shape[:2]
    a, b, c, d = matrix
    for x, y in ((0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)):
        new_x, new_y = a * x + c * y, b * x + d * y
        new_x += shown.shape[1] - 1 if min(a, c) < 0 else 0
        new_y += shown.shape[0] - 1 if min(b, d) < 0 else 0
        np.testing.assert_array_equal(shown[new_y, new_x], stored[y, x])
    assert np.array_equal(np.sort(shown.ravel()), np.sort(stored.ravel()))


def test_a_matrix_that_also_resizes_turns_the_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "phone.mp4")
    stored = read_video(path)[3].image
    path.write_bytes(with_display_matrix(path.read_bytes(), (0, 3, -1, 0)))
    np.testing.assert_array_equal(read_video(path)[3].image, cv2.rotate(stored, cv2.ROTATE_90_CLOCKWISE))


def test_pixels_that_are_not_square_keep_their_aspect(tmp_path: Path) -> None:
    path = write_media(tmp_path / "x.mp4", aspect=Fraction(16, 11))
    frames = read_video(path)
    assert frames[0].aspect == pytest.approx(16 / 11)
    for matrix, aspect in ((QUARTER_TURN, 11 / 16), (HALF_TURN, 16 / 11)):
        turned = tmp_path / f"{aspect}.mp4"
        turned.write_bytes(with_display_matrix(path.read_bytes(), matrix))
        assert read_video(turned)[0].aspect == pytest.approx(aspect)
    with contextlib.closing(video.VideoWriter(tmp_path / "y.mp4", (48, 64), 10, aspect=frames[0].aspect)) as writer:
        writer.write(frames[0].image, 0.0)
    with av.open(str(tmp_path / "y.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(16, 11)


def test_damaged_frames_are_reported_and_skipped(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4")
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    path.write_bytes(data)
    frames = read_video(path)
    errors = [str(frame.error) for frame in frames if frame.error]
    assert errors and f"of {path} cannot be decoded" in errors[0]
    numbers = [frame.number for frame in frames if frame.number is not None]
    assert numbers == sorted(set(numbers)) and {0, 11} < set(numbers) < set(range(12))


@pytest.mark.parametrize("suffix", [".avi", ".mkv"])
def test_a_video_that_was_cut_off_is_reported(tmp_path: Path, suffix: str) -> None:
    path = write_media(tmp_path / f"clip{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    *frames, last = read_video(path)
    assert 6 < len(frames) < 16 and f"{path} ends early: it has" in str(last.error)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it is no file, or empty"),
        (b"no video", "cannot be opened as a video"),
        ((b"vide", b"soun"), "no images that FFmpeg can decode"),
        ((b"avc1", b"none"), "no images that FFmpeg can decode"),
    ],
    ids=["empty", "text", "only sound", "an unknown codec"],
)
def test_a_file_that_is_no_video_is_an_error(
    tmp_path: Path, content: bytes | tuple[bytes, bytes], message: str
) -> None:
    path = write_video(tmp_path / "x.mp4")
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes().replace(*content))
    [frame] = read_video(path)
    assert str(path) in str(frame.error) and message in str(frame.error)


def test_a_fifo_is_an_error_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.mp4")
    [frame] = read_frames([Source("video", tmp_path / "fifo.mp4")])
    assert "it is no file" in str(frame.error)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files")
def test_a_video_that_is_not_read_to_its_end_is_closed(tmp_path: Path) -> None:
    path = write_video(tmp_path / "x.mp4", count=60)
    frames = read_frames(path)

    def is_open() -> bool:
        return path in [file.resolve() for file in Path("/proc/self/fd").iterdir()]

    next(frames)
    assert is_open()
    frames.close()
    assert not is_open()


def test_a_title_that_is_not_utf_8_does_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4")
    assert b"Lavf" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"Lavf", b"Lav\xbe"))
    assert [frame.error for frame in read_video(path)] == [None] * 12


DAMAGED = None


class ListedTimes(video.PyAVReader):
    """A video of frames at the given times, without a file."""

    rate, length, end, aspect = 10.0, 0.0, 0.0, 1.0
    source = Source("video", Path("clip"))

    def __init__(self, times: Sequence[float | None]) -> None:
        self._times = times

    def decode(self) -> Iterator[float | None]:
        yield from self._times

    def _seek(self, seconds: float) -> int:
        return 0

    def image(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)


def read(times: Sequence[float | None], **selection: Any) -> list[Frame]:
    frames = []
    try:
        frames.extend(ListedTimes(times).frames(FrameSelection(**selection)))
    except DataError as error:
        frames.append(Frame(ListedTimes.source, error=error))
    return frames


def test_times_that_are_unknown_or_do_not_increase_follow_the_frame_rate() -> None:
    times = [frame.seconds for frame in read([math.nan, 0.1, 0.05, 0.5, math.nan])]
    np.testing.assert_allclose(times, [0, 0.1, 0.2, 0.5, 0.6])


def test_damaged_frames_keep_their_numbers_and_are_reported_unless_they_are_the_last() -> None:
    frames = read([0.0, DAMAGED, DAMAGED, 0.3, DAMAGED])
    assert [str(frame.error) if frame.error else frame.number for frame in frames] == [
        0,
        "frame 1 of clip cannot be decoded",
        "frame 2 of clip cannot be decoded",
        3,
    ]
    assert len(read([0.0] + [DAMAGED] * video.MAX_UNREADABLE_IN_A_ROW + [20.0])) == 1, "too many in a row end the video"
    [frame] = read([DAMAGED] * 3)
    assert isinstance(frame.error, DataError) and "clip is damaged: no frame can be decoded" in str(frame.error)


@pytest.mark.parametrize(
    "selection, numbers",
    [
        ({}, list(range(20))),
        ({"stride": 7}, [0, 7, 14]),
        ({"start": 1.0}, list(range(10, 20))),
        ({"duration": 0.3}, [0, 1, 2]),
        ({"start": 0.2, "duration": 0.0}, []),
        ({"start": 0.45, "duration": 1.0, "stride": 4}, [5, 9, 13]),
        ({"start": 5.0}, [None]),
    ],
)
def test_selected_frames(selection: dict[str, Any], numbers: list[int]) -> None:
    frames = read([number / 10 for number in range(20)], **selection)
    assert [frame.number for frame in frames] == numbers
    assert all(frame.error or frame.rate == 10 / selection.get("stride", 1) for frame in frames)


def test_frames_that_an_edit_list_hides_do_not_count(tmp_path: Path) -> None:
    """As in a video that was cut without encoding it again: it begins with a keyframe before its first frame."""
    with av.open(str(tmp_path / "cut.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"x264-params": "keyint=4:scenecut=0:bframes=0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        frames = [av.VideoFrame.from_ndarray(grey_image(number % 12), format="bgr24") for number in range(20)]
        for packet in (*itertools.chain(*map(stream.encode, frames)), *stream.encode(None)):
            hidden = round(Fraction(6, 10) / packet.time_base)
            packet.pts -= hidden
            packet.dts -= hidden
            container.mux(packet)
    shown = read_video(tmp_path / "cut.mp4")
    assert [frame.number for frame in shown] == list(range(14)), "without the first six"
    for start in (0.2, 0.7, 1.1):
        part = read_video(tmp_path / "cut.mp4", start=start)
        assert [(frame.number, frame.seconds) for frame in part] == [
            (frame.number, frame.seconds) for frame in shown if frame.seconds > start - 0.01
        ]


def test_what_is_before_the_keyframe_of_the_start_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"x264-params": "keyint=5:scenecut=0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        frames = [av.VideoFrame.from_ndarray(grey_image(number % 12), format="bgr24") for number in range(20)]
        container.mux([*itertools.chain(*map(stream.encode, frames)), *stream.encode(None)])
    decode, decoded = video.PyAVReader.decode, []

    def note_decoded(reader: video.PyAVReader) -> Iterator[float | None]:
        for seconds in decode(reader):
            decoded.append(seconds)
            yield seconds

    monkeypatch.setattr(video.PyAVReader, "decode", note_decoded)
    part = read_video(tmp_path / "clip.mp4", start=0.7)
    assert [frame.number for frame in part] == [*range(7, 20)] and len(decoded) == 15


def test_a_start_and_an_end_at_the_times_of_frames_are_exact_where_a_file_has_no_times(tmp_path: Path) -> None:
    path = write_media(tmp_path / "a.avi")
    for number in range(1, 9):
        part = read_video(path, start=number / 10, duration=0.3)
        assert [frame.number for frame in part] == [number, number + 1, number + 2]


@pytest.mark.parametrize("suffix, orientation", [(".mkv", 2), (".mov", 6), (".mjpeg", 8), (".avi", 3)])
def test_photographs_with_exif_data_in_a_video_are_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    """As a container has them that was filled with -c copy, and as cameras send them."""
    photographs = []
    for number in range(3):
        image = cv2.resize(grey_image(4 * number), (64, 48))
        image[:10, :20] = (0, 0, 255)  # a corner
        photographs.append(with_orientation(encode(image), orientation))
    path = tmp_path / f"x{suffix}"
    if suffix == ".mjpeg":
        path.write_bytes(b"".join(photographs))
    else:
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mjpeg", rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
            for number, data in enumerate(photographs):
                packet = av.Packet(data)
                packet.stream, packet.pts, packet.dts = stream, number, number
                packet.time_base = Fraction(1, 10)
                container.mux(packet)
    frames = read_video(path)
    assert [frame.error for frame in frames] == [None] * 3
    for frame, data in zip(frames, photographs, strict=True):
        expected = decode_image(np.frombuffer(data, np.uint8))
        assert frame.image.shape == expected.shape
        assert abs(frame.image.astype(int) - expected).mean() < 12


def test_sound_with_a_cover_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w", format="mp4") as container:
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        packet = av.Packet(encode(grey_image(1)))
        packet.stream, packet.pts, packet.dts, packet.time_base = cover, 0, 0, Fraction(1)
        container.mux(packet)
    [frame] = read_frames(path)
    assert str(path) in str(frame.error) and "cover" in str(frame.error)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".apng", ".avif", ""])
def test_every_image_of_a_file_with_several_is_read(tmp_path: Path, suffix: str) -> None:
    """Without a suffix, the content says what it is."""
    kind = suffix.lower() or ".gif"
    path = write_animation(tmp_path / f"x{kind if kind != '.apng' else '.png'}").rename(tmp_path / f"x{suffix}")
    frames = list(read_frames(path))
    assert [frame.number for frame in frames] == list(range(20)) and not any(frame.error for frame in frames)
    np.testing.assert_allclose([frame.seconds for frame in frames], np.arange(20) / 10, atol=1e-3)
    for number, frame in enumerate(frames):
        assert frame.image.shape == (48, 64, 3)
        assert frame.image.mean() == pytest.approx(grey_image(number % 12).mean(), abs=12)
    path.unlink()
    [frame] = read_frames(write_animation(tmp_path / f"one{kind if kind != '.apng' else '.png'}", count=1))
    assert frame.number is None and frame.image.shape == (48, 64, 3)


@pytest.mark.parametrize("suffix", [".webp", ".tif"])
def test_several_images_of_which_ffmpeg_reads_one_at_most_are_refused(tmp_path: Path, suffix: str) -> None:
    [frame] = read_frames(write_animation(tmp_path / f"x{suffix}"))
    assert "give single images" in str(frame.error)


def test_a_live_http_stream_is_connected_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with media_server(tmp_path) as address:
        frames = []
        for frame in read_frames(f"{address}/live"):
            assert frame.is_live and frame.image.shape == (48, 64, 3)
            frames.append(frame)
            if frame.number is not None and frame.number > 2 * IMAGES_PER_CONNECTION:
                break
    assert "/live is lost; connecting again" in caplog.text
    assert [frame.number for frame in frames] == sorted({frame.number for frame in frames})


def test_a_stream_without_a_server_is_an_error() -> None:
    [frame] = read_frames("rtsp://me:secret@127.0.0.1:9/live")
    assert "rtsp://127.0.0.1:9/live cannot be opened" in str(frame.error) and "secret" not in str(frame.error)


def test_a_camera_is_read_for_a_given_time_and_a_missing_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    request = FakeCapture.install(monkeypatch, count=100_000)
    for _ in range(100_000):
        request.release()
    for duration in (0.5, 2.0, 8.0):  # a machine at its limit may read no image in a short time
        frames = list(read_frames("0", selection=FrameSelection(start=0.05, duration=duration)))
        assert all(0.05 <= frame.seconds < 0.05 + duration and not frame.error for frame in frames)
        if frames:
            break
    assert frames
    [missing] = read_frames("17")
    assert "camera 17 cannot be opened" in str(missing.error)


@pytest.mark.parametrize("device", ["0", "/dev/video0"])
def test_damaged_images_of_a_camera_are_dropped_and_many_in_a_row_end_it(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    request = FakeCapture.install(monkeypatch, count=10_000)
    retrieve = FakeCapture.retrieve

    def retrieve_some(capture: FakeCapture) -> tuple[bool, np.ndarray | None]:
        good, image = retrieve(capture)
        number = int(image[0, 0, 0])
        if number == 2:
            raise cv2.error("an unknown format")
        return (good, image) if number in (3, 5) else (False, None)

    monkeypatch.setattr(FakeCapture, "retrieve", retrieve_some)
    frames = []
    for _ in range(4):
        request.release()
    for frame in read_frames(device):
        frames.append(frame)
        for _ in range(1 if len(frames) == 1 else 1000):
            request.release()
    *images, last = frames
    assert [(frame.number, int(frame.image[0, 0, 0])) for frame in images] == [(0, 3), (1, 5)]
    assert images[0].is_live and str(last.error) == f"camera {device} delivers no more images"


def test_a_frame_that_cannot_be_used_does_not_end_its_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", count=4)
    number = itertools.count()

    def fail_once(*_: object) -> int:
        return 1 // (next(number) != 1)

    monkeypatch.setattr("posenet.inference.media.video._orientation_of", fail_once)
    frames = list(read_frames(path))
    assert [frame.number for frame in frames] == [0, None, 2, 3] and "frame 1 of" in str(frames[1].error)
