"""Calibration images, and their overlap with a split."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.annotations.coco import CocoImage
from posenet.errors import DataError
from posenet.inference.calibration import (
    choose_calibration_files,
    draw_calibration_images,
    find_calibrated,
    read_calibration_images,
)
from posenet.inference.letterbox import Letterbox


def letterbox(size: tuple[int, int]) -> Letterbox:
    return Letterbox((96, 96 * size[1] // size[0]), (128, 128))


def test_files_are_chosen_from_the_whole_list() -> None:
    files = [Path(f"{index}.png") for index in range(100)]
    assert choose_calibration_files(files, 3) == [files[0], files[50], files[99]]
    assert choose_calibration_files(files, 1) == files[:1]
    assert choose_calibration_files(files[:2], 3) == files[:2]


def test_images_are_resized_and_padded_as_for_prediction(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (192, 160, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), image)
    [padded] = read_calibration_images([tmp_path / "a.png"], letterbox)
    assert np.array_equal(padded, letterbox((192, 160)).apply(image))
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="b.png"):
        read_calibration_images([tmp_path / "b.png"], letterbox)


def test_drawn_images_differ() -> None:
    first, second = draw_calibration_images(2, letterbox)
    assert first.shape == second.shape == (128, 128, 3)
    assert not np.array_equal(first, second)


def test_overlap_is_found_by_path_and_by_content(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    for name, content in {"same.png": b"1234", "equal.png": b"5678", "other.png": b"abcd"}.items():
        (folder / name).write_bytes(content)
    (tmp_path / "copy.png").write_bytes(b"5678")
    (tmp_path / "link.png").symlink_to(folder / "same.png")
    names = ("same.png", "equal.png", "other.png", "missing.png")
    images = [CocoImage(number, name, 1, 1) for number, name in enumerate(names)]
    assert find_calibrated([tmp_path / "link.png", tmp_path / "copy.png"], folder, images) == {0, 1}
