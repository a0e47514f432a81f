"""What PyAV does beyond OpenCV: exact times, sound, more codecs, files for browsers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.inference.media.video import ALL_FRAMES, FrameSelection
from posenet.inference.media.video_library import open_video_writer
from tests.helpers.videos import grey_image, read_video, write_media, write_video

av = pytest.importorskip("av", reason="needs PyAV (the extra video)")
pyav_video = pytest.importorskip("posenet.inference.media.pyav_video")

VARIABLE_TIMES = [0.0, 0.04, 0.1, 0.15, 0.6, 1.2, 1.81, 2.4]


def write_with_sound_of(source: Path, path: Path, selection: FrameSelection = ALL_FRAMES) -> Path:
    """Write the images of a video again, with its sound."""
    with open_video_writer(path, (48, 64), 10, sound_from=source) as writer:
        for frame in read_video(source, selection):
            writer.write(frame.image, frame.seconds)
    return path


def sound_packets(path: Path) -> list[tuple[float, bytes]]:
    """The sound of a file: (seconds after the first image, bytes) of every packet."""
    with av.open(str(path)) as container:
        first_image = next(container.decode(video=0)).time
    with av.open(str(path)) as container:
        packets = list(container.demux(audio=0))
        return [(float(p.pts * p.time_base) - first_image, bytes(p)) for p in packets if p.pts is not None]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_every_image_keeps_its_time(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with open_video_writer(path, (48, 64), 8 / 2.5) as writer:
        for number, seconds in enumerate(VARIABLE_TIMES):
            writer.write(grey_image(number), seconds)
    np.testing.assert_allclose([frame.seconds for frame in read_video(path)], VARIABLE_TIMES, atol=1e-3)
    with av.open(str(path)) as container:
        assert container.duration / 1e6 == pytest.approx(2.4 + 2.5 / 8, abs=0.05)


def test_browsers_can_show_the_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "x.mp4", size=(47, 63))
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.width, stream.height) == ("h264", "yuv420p", 64, 48)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "the index comes first"


@pytest.mark.parametrize(
    "codec, pixels", [("libsvtav1", "yuv420p"), ("libx265", "yuv420p10le"), ("libsvtav1", "yuv420p10le")]
)
def test_av1_and_10_bit_videos_are_read(tmp_path: Path, codec: str, pixels: str) -> None:
    frames = read_video(write_media(tmp_path / "x.mp4", codec=codec, pixels=pixels))
    assert len(frames) == 20
    assert frames[8].image.dtype == np.uint8 and frames[8].image.mean() == pytest.approx(8 * 15 + 15, abs=6)


def test_pixels_that_are_not_square_keep_their_aspect(tmp_path: Path) -> None:
    path = write_media(tmp_path / "x.mp4", aspect=Fraction(16, 11))
    with open_video_writer(tmp_path / "y.mp4", (48, 64), 10, aspect=16 / 11) as writer:
        for frame in read_video(path):
            writer.write(frame.image, frame.seconds)
    with av.open(str(tmp_path / "y.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(16, 11)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_sound_is_copied_unchanged_up_to_the_last_image(tmp_path: Path, suffix: str) -> None:
    source = write_media(tmp_path / "in.mp4", sound=3)
    copied = sound_packets(write_with_sound_of(source, tmp_path / f"out{suffix}"))
    original = sound_packets(source)
    assert [data for _, data in copied] == [data for _, data in original][: len(copied)]
    np.testing.assert_allclose(*zip(*((a[0], b[0]) for a, b in zip(copied, original))), atol=2e-3)
    assert copied[-1][0] == pytest.approx(2.0, abs=0.05)


def test_images_that_start_after_the_sound_still_do(tmp_path: Path) -> None:
    source = write_media(tmp_path / "in.mkv", 1.5 + np.arange(10) / 10, sound=3)
    path = write_with_sound_of(source, tmp_path / "out.mkv")
    assert sound_packets(path)[0][0] == pytest.approx(sound_packets(source)[0][0], abs=1e-3)
    assert sound_packets(path)[0][0] == pytest.approx(-1.5, abs=0.05)


def test_a_part_of_a_video_has_its_part_of_the_sound(tmp_path: Path) -> None:
    source = write_media(tmp_path / "in.mp4", np.arange(40) / 10, sound=4)
    path = write_with_sound_of(source, tmp_path / "out.mp4", FrameSelection(start=2, duration=1))
    copied = sound_packets(path)
    start = next(number for number, (time, _) in enumerate(sound_packets(source)) if time >= 2)
    assert [data for _, data in copied] == [data for _, data in sound_packets(source)][start : start + len(copied)]
    assert copied[0][0] == pytest.approx(0, abs=0.03) and copied[-1][0] == pytest.approx(1, abs=0.05)
    assert read_video(path)[-1].seconds == pytest.approx(0.9)


def test_sound_that_the_format_cannot_hold_is_left_out_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_media(tmp_path / "in.mkv", sound=2, sound_codec="tta")
    path = write_with_sound_of(source, tmp_path / "out.mp4")
    assert f"The sound of {source} is left out: mp4 does not hold its codec" in caplog.text
    assert len(read_video(path)) == 20


def test_damaged_sound_is_left_out_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_media(tmp_path / "in.mkv", sound=2)
    read_packets = pyav_video._SoundCopy._read_packets

    def jump_back(self: Any) -> Iterator[Any]:
        for number, packet in enumerate(read_packets(self)):
            packet.dts -= 500 * (number == 20)
            packet.pts = packet.dts
            yield packet

    monkeypatch.setattr(pyav_video._SoundCopy, "_read_packets", jump_back)
    path = write_with_sound_of(source, tmp_path / "out.mkv")
    assert f"The rest of the sound of {source} is left out: it is damaged" in caplog.text
    assert len(read_video(path)) == 20
