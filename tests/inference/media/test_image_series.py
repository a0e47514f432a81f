"""Numbered images, animations and files with several pages, as videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.media.image_series import is_numbered_pattern, stem_of_pattern
from posenet.inference.media.sources import Frame, count_frames, find_sources, read_frames
from posenet.inference.media.video import FrameSelection
from tests.helpers.videos import GREY, grey_image, write_animation


@pytest.mark.parametrize("suffix, rate", [(".gif", 10), (".webp", 10), (".tif", 25)])
def test_all_images_of_an_animation_or_a_document_are_read(
    library: str, tmp_path: Path, suffix: str, rate: float
) -> None:
    write_animation(tmp_path / f"x{suffix}")
    sources = find_sources([str(tmp_path)])
    assert [source.kind for source in sources] == ["video"] and count_frames(sources) == 20
    frames = list(read_frames(sources))
    assert [frame.number for frame in frames] == list(range(20))
    np.testing.assert_allclose([frame.seconds for frame in frames], np.arange(20) / rate, atol=1e-3)
    for frame in frames:
        assert frame.image.shape == (48, 64, 3)
        assert frame.image.mean() == pytest.approx(grey_image(frame.number % 12).mean(), abs=12)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".tif"])
def test_a_file_with_one_image_is_an_image(tmp_path: Path, suffix: str) -> None:
    path = write_animation(tmp_path / f"x{suffix}", count=1)
    assert [source.kind for source in find_sources([str(path)])] == ["image"]


def test_a_damaged_animation_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_animation(tmp_path / "x.tif")
    path.write_bytes(path.read_bytes()[:-2000])
    (tmp_path / "y.webp").write_bytes(b"no image")
    items = list(read_frames(find_sources([str(path), str(tmp_path / "y.webp")])))
    assert [item.error for item in items if not isinstance(item, Frame)]
    assert capfd.readouterr() == ("", ""), "OpenCV printed something"


def test_numbered_images_are_a_video_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (8, 9, 10, 12):
        write_image(tmp_path / f"frame_{number}.png", np.full((48, 64, 3), number, np.uint8))
    write_image(tmp_path / "frame_007.png", GREY)  # has the number, but not in this form
    sources = find_sources([str(tmp_path / "frame_%d.png")])
    assert count_frames(sources, FrameSelection(stride=2)) == 2 and sources[0].stem == "frame"
    frames = list(read_frames(sources))
    assert [int(frame.image[0, 0, 0]) for frame in frames] == [8, 9, 10, 12]
    assert [frame.number for frame in frames] == [0, 1, 2, 3]
    assert frames[-1].seconds == pytest.approx(3 / 25)
    [missing] = [tmp_path / "frame_%03d.png"]
    assert [frame.number for frame in read_frames(find_sources([str(missing)]))] == [0]


def test_a_damaged_image_among_numbered_ones_is_a_damaged_frame(tmp_path: Path) -> None:
    for number in range(3):
        write_image(tmp_path / f"{number:03d}.png", GREY)
    (tmp_path / "001.png").write_bytes(b"no image")
    first, error, last = read_frames(find_sources([str(tmp_path / "%03d.png")]))
    assert (first.number, last.number) == (0, 2) and "frame 1 of" in str(error.error)


def test_a_pattern_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="%04d for one of four digits"):
        find_sources([str(tmp_path / "frame_%04d.png")])


def test_patterns_and_their_stems(tmp_path: Path) -> None:
    (tmp_path / "100%d.png").write_bytes(b"")
    names = ["frame_%04d.png", "%d.jpg", "a-%03d-b.png", "100%d.png", "plain.png"]
    assert [is_numbered_pattern(tmp_path / name) for name in names] == [True, True, True, False, False]
    assert [stem_of_pattern(tmp_path / name) for name in names[:3]] == ["frame", "images", "a--b"]
