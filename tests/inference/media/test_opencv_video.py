"""Videos through OpenCV alone, where PyAV is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.inference.media import opencv_video, video_library
from posenet.inference.media.video_library import open_video_writer
from tests.helpers.videos import grey_image, read_video, write_media


@pytest.fixture(autouse=True)
def no_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_library, "has_pyav", lambda: False)


def write(path: Path, times: Sequence[float], rate: float = 10.0) -> list[int]:
    with open_video_writer(path, (48, 64), rate) as writer:
        for number, seconds in enumerate(times):
            writer.write(grey_image(number), seconds)
    return [round((frame.image.mean() - 15) / 15) for frame in read_video(path)]


def test_images_are_repeated_and_left_out_to_keep_the_pace(tmp_path: Path) -> None:
    assert write(tmp_path / "x.mp4", [0.0, 0.1, 0.4, 0.43, 0.5]) == [0, 1, 1, 1, 2, 4]


def test_a_part_of_a_video_starts_with_its_first_image(tmp_path: Path) -> None:
    assert write(tmp_path / "x.mp4", [100.0, 100.1, 100.2]) == [0, 1, 2]


def test_a_jump_of_the_times_does_not_fill_the_disk(tmp_path: Path) -> None:
    jump = 2 * opencv_video.MAX_GAP
    assert write(tmp_path / "x.mp4", [0.0, 0.1, jump, jump + 0.1]) == [0, 1, 2, 3]


def test_a_codec_that_opencv_does_not_know_is_named(tmp_path: Path) -> None:
    [error] = read_video(write_media(tmp_path / "x.mp4", codec="libsvtav1"))
    assert "its codec (AV01) is unknown to this OpenCV; install PyAV (pip install 'posenet[video]')" in str(error)


def test_a_failed_write_is_noticed_even_if_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LosingWriter:
        """Writes the first four images only, and says nothing, as OpenCV does while the disk is full."""

        fourcc = cv2.VideoWriter.fourcc

        def __init__(self, *arguments: Any) -> None:
            self.written = 0
            self.writer = make_writer(*arguments)
            self.isOpened = self.writer.isOpened
            self.release = self.writer.release

        def write(self, image: np.ndarray) -> None:
            self.written += 1
            if self.written < 5:
                self.writer.write(image)

    make_writer = cv2.VideoWriter
    monkeypatch.setattr(cv2, "VideoWriter", LosingWriter)
    with pytest.raises(OSError, match="is the disk full"):
        write(tmp_path / "x.mkv", np.arange(12) / 10)
    assert list(tmp_path.iterdir()) == []
