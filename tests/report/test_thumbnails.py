"""Small copies of images for the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.report import thumbnails
from posenet.report.thumbnails import MAX_BYTES, NO_FOLDER, encode_within, read_thumbnails
from tests.helpers.diagnoses import HEIGHT, WIDTH, image_of
from tests.helpers.oriented_images import lit_centre, oriented_image


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def decode(jpeg: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)


def test_a_plain_image_keeps_its_size_and_a_large_one_is_made_small() -> None:
    grey = np.full((300, 400, 3), 90, np.uint8)
    assert decode(encode_within(grey, MAX_BYTES)).shape == (300, 400, 3)
    large = np.full((1500, 2000, 3), 90, np.uint8)
    assert decode(encode_within(large, MAX_BYTES)).shape == (480, 640, 3)


def test_an_image_is_made_small_until_it_fits() -> None:
    image = noise(800, 1200)
    sizes = [len(encode_within(image, limit)) for limit in (200_000, 90_000, 20_000)]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert all(size <= limit for size, limit in zip(sizes, (200_000, 90_000, 20_000)))


def test_an_image_that_fits_at_no_size_is_empty() -> None:
    assert encode_within(noise(800, 1200), 100) == b""


def test_all_images_together_stay_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [image_of(number, [], [], name=f"{number}.png") for number in range(6)]
    for image in images:
        cv2.imwrite(str(tmp_path / image.file_name), noise(HEIGHT, WIDTH))
    monkeypatch.setattr(thumbnails, "MAX_TOTAL_BYTES", 150_000)
    found = read_thumbnails(images, tmp_path, progress=False)
    assert all(thumbnail.jpeg for thumbnail in found)
    assert sum(len(thumbnail.jpeg) for thumbnail in found) <= 150_000


def test_images_without_a_file_or_folder_have_a_note(tmp_path: Path) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8 no more")
    images = [image_of(1, [], [], name="missing.jpg"), image_of(2, [], [], name="damaged.jpg")]
    for image, thumbnail in zip(images, read_thumbnails(images, tmp_path, progress=False)):
        assert thumbnail.jpeg == b""
        assert image.file_name in thumbnail.note
    assert {thumbnail.note for thumbnail in read_thumbnails(images, None, progress=False)} == {NO_FOLDER}


def test_an_image_of_another_size_than_annotated_is_shown_with_a_note(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "1.png"), np.zeros((100, 100, 3), np.uint8))
    [thumbnail] = read_thumbnails([image_of(1, [], [], name="1.png")], tmp_path, progress=False)
    assert thumbnail.jpeg
    assert "100 x 100" in thumbnail.note
    assert f"{WIDTH} x {HEIGHT}" in thumbnail.note


@pytest.mark.parametrize("frame", ["stored", "displayed"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_shown_in_the_frame_of_its_annotations(tmp_path: Path, orientation: int, frame: str) -> None:
    drawn = oriented_image(orientation)
    (tmp_path / "1.jpg").write_bytes(drawn.data)
    height, width = drawn.sizes[frame]
    image = dataclasses.replace(image_of(1, [], [], name="1.jpg"), height=height, width=width)
    [thumbnail] = read_thumbnails([image], tmp_path, exif_frame=frame, progress=False)
    assert thumbnail.note == ""
    assert lit_centre(decode(thumbnail.jpeg)) == pytest.approx(drawn.centres[frame], abs=0.6)
