"""The EXIF orientation: it is read, applied, and the annotated frame follows from the size or from the setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.images import (
    AnnotatedFrame,
    apply_orientation,
    count_frames,
    declared_size,
    decode_annotated_image,
    decode_image,
    exif_orientation,
    find_annotated_frame,
    read_annotated_image,
)
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.oriented_images import SIZE, lit_centre, oriented_image

ORIENTATIONS = range(1, 9)


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_an_image_is_displayed_as_pillow_displays_it(orientation: int, suffix: str) -> None:
    drawn = oriented_image(orientation, suffix=suffix)
    data = np.frombuffer(drawn.data, np.uint8)
    assert exif_orientation(data) == exif_orientation(drawn.data) == orientation
    if suffix != "webp" or orientation > 1:  # without EXIF data, Pillow writes WebP files of the simple kind
        assert declared_size(data) == SIZE
    for frame, upright in (("displayed", True), ("stored", False)):
        image = decode_image(data, upright=upright)
        assert image.shape[:2] == drawn.sizes[frame]
        assert lit_centre(image) == pytest.approx(drawn.centres[frame], abs=0.6)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_reduced_image_is_turned_too(orientation: int) -> None:
    drawn = oriented_image(orientation)
    image = decode_annotated_image(
        np.frombuffer(drawn.data, np.uint8), *drawn.sizes["displayed"], reduction=8, orientation=orientation
    )
    x, y = (8 * value + 3.5 for value in lit_centre(image))
    assert (x, y) == pytest.approx(drawn.centres["displayed"], abs=4)


def test_applying_an_orientation_copies_nothing_where_there_is_none() -> None:
    image = np.zeros((3, 4, 3), np.uint8)
    assert apply_orientation(image, 1) is image


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
def test_the_size_decides_where_it_fits_one_frame_and_else_the_setting(orientation: int, exif_frame: str) -> None:
    drawn = oriented_image(orientation)
    square = oriented_image(orientation, size=(160, 160), corner=(100, 32))
    by_setting = AnnotatedFrame(orientation if exif_frame == "displayed" else 1, "setting")
    for frame in ("stored", "displayed"):
        found = find_annotated_frame(drawn.data, *drawn.sizes[frame], exif_frame)
        if orientation == 1:
            assert found == AnnotatedFrame(1, "no tag")
        elif orientation < 5:
            assert found == by_setting
        else:
            assert found == AnnotatedFrame(orientation if frame == "displayed" else 1, "size")
    if orientation > 1:
        assert find_annotated_frame(square.data, 160, 160, exif_frame) == by_setting
        assert find_annotated_frame(drawn.data, 7, 9, exif_frame) == by_setting


def test_decisions_are_counted() -> None:
    frames = [AnnotatedFrame(1, "no tag"), AnnotatedFrame(6, "size"), AnnotatedFrame(1, "size")]
    frames += [AnnotatedFrame(3, "setting"), AnnotatedFrame(8, "size")]
    assert count_frames(frames) == {
        "displayed frame by setting": 1,
        "displayed frame by size": 2,
        "stored frame by size": 1,
    }
    assert count_frames(frames[:1]) == {}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("frame", ["stored", "displayed"])
def test_an_annotated_image_is_read_in_the_frame_of_its_annotations(
    tmp_path: Path, orientation: int, frame: str
) -> None:
    drawn = oriented_image(orientation)
    path = tmp_path / "a.jpg"
    path.write_bytes(drawn.data)
    image, _ = read_annotated_image(path, *drawn.sizes[frame], frame)
    assert lit_centre(image) == pytest.approx(drawn.centres[frame], abs=0.6)


@pytest.mark.parametrize("damage", [slice(0, 14), slice(0, 30), slice(0, 4)])
def test_damaged_exif_data_are_no_orientation(damage: slice) -> None:
    data = with_orientation(encode(np.zeros((8, 8, 3), np.uint8)), 6)
    assert exif_orientation(data) == 6
    assert exif_orientation(data[damage]) == 1


def test_the_orientation_is_found_behind_other_segments_and_only_in_the_header() -> None:
    jpeg = with_orientation(encode(np.zeros((8, 8, 3), np.uint8)), 6)
    note = b"\xff\xe1\x00\x10http://ns.adobe"[:18].ljust(18, b"\0")
    assert exif_orientation(jpeg[:2] + note + jpeg[2:]) == 6
    plain = encode(np.zeros((8, 8, 3), np.uint8))
    assert exif_orientation(plain + jpeg) == 1
