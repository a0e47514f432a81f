"""Listing, reading, converting and writing image files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import find_images, read_image, to_bgr, write_image
from tests.helpers.image_bytes import encode, png_declaring, with_orientation


def test_exif_orientation_is_followed_or_ignored(tmp_path: Path) -> None:
    image = np.zeros((40, 60, 3), np.uint8)
    image[:20, :30] = 255
    path = tmp_path / "rotated.jpg"
    path.write_bytes(with_orientation(encode(image), 6))
    assert read_image(path).shape == (60, 40, 3)
    assert read_image(path)[:20, 25:].mean() > 250
    assert read_image(path, upright=False).shape == (40, 60, 3)


@pytest.mark.parametrize(
    "image",
    [
        np.full((5, 7), 200, np.uint8),
        np.full((5, 7, 4), 200, np.uint8),
        np.full((5, 7, 3), 200 * 257, np.uint16),
        np.full((5, 7), 200 * 257, np.uint16),
        np.full((5, 7, 4), 200 * 257, np.uint16),
        np.full((1, 1), 200, np.uint8),
    ],
    ids=["grey", "alpha", "16-bit", "16-bit grey", "16-bit alpha", "1x1"],
)
def test_every_kind_of_image_becomes_8_bit_bgr(tmp_path: Path, image: np.ndarray) -> None:
    path = tmp_path / "bild ü.png"
    path.write_bytes(encode(image, ".png"))
    for result in (read_image(path), to_bgr(image)):
        assert result.dtype == np.uint8 and result.shape == (*image.shape[:2], 3)
        assert (result == 200).all()


@pytest.mark.parametrize(
    "content",
    [b"no image", encode(np.zeros((9, 9), np.uint8), ".png")[:30], png_declaring(10**6, 10**6)],
    ids=["text", "cut", "vast"],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.png .*; save it as JPEG or PNG"):
        read_image(path)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")


def test_files_folders_and_patterns_are_expanded(tmp_path: Path) -> None:
    touch(tmp_path / "a", "2.JPG", "1.png", "notes.txt")
    touch(tmp_path / "a" / "deeper", "3.jpg")
    touch(tmp_path / "b", "odd.raw", "[1].jpg")
    a, b = tmp_path / "a", tmp_path / "b"
    assert find_images([a]) == [a / "1.png", a / "2.JPG"]
    assert find_images([b / "odd.raw", a / "1.png", str(a), a / ".." / "a" / "1.png"]) == [
        b / "odd.raw",
        a / "1.png",
        a / "2.JPG",
    ]
    assert find_images([str(tmp_path / "*" / "*.jpg")]) == [b / "[1].jpg"]
    assert find_images([str(tmp_path / "**" / "*.jpg")]) == [a / "deeper" / "3.jpg", b / "[1].jpg"]
    assert find_images([str(b / "[1].jpg")]) == [b / "[1].jpg"]


@pytest.mark.parametrize(
    "item, message", [("nothing.jpg", "no such file"), ("*.png", "no file matches"), ("bare", "no images in folder")]
)
def test_an_input_without_images_is_an_error(tmp_path: Path, item: str, message: str) -> None:
    touch(tmp_path / "bare", "notes.txt")
    with pytest.raises(DataError, match=message):
        find_images([str(tmp_path / item)])


def test_files_of_other_kinds_in_a_folder_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.jpg", "b.HEIC", "c.avif", "._a.jpg", "._b.heic", ".DS_Store", "d.raw", "e.RAW", "notes")
    assert [path.name for path in find_images([tmp_path])] == ["a.jpg", "b.HEIC", "c.avif"]
    assert caplog.messages == [f"left out of folder {tmp_path}: 2 ._, 2 .raw, 1 without suffix"]


def test_subfolders_are_searched_if_asked_for_and_counted_if_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "b" / "c", "1.png", "2.txt")
    touch(tmp_path / ".hidden", "1.png")
    touch(tmp_path, "a.png", "z.png")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    assert find_images([tmp_path]) == [tmp_path / "a.png", tmp_path / "z.png"]
    assert caplog.messages == [f"left out of folder {tmp_path}: 1 folder"]
    found = find_images([tmp_path], recursive=True)
    assert found == [tmp_path / "a.png", tmp_path / "b" / "c" / "1.png", tmp_path / "z.png"]


@pytest.mark.skipif(os.sep != "/", reason="a backslash separates folders here")
def test_the_separators_of_windows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch(Path("photos"), "a.png")
    for read in (read_image, lambda path: find_images([path])):
        with pytest.raises(DataError, match=r"photos\\a.png.*; folders are separated by /: photos/a.png"):
            read("photos\\a.png")
    with pytest.raises(DataError, match=r"no file matches .*photos/\*.png"):
        find_images(["photos\\*.png"])


def test_pil_images_paths_and_rgb_arrays_become_bgr(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    bgr = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    rgb = np.ascontiguousarray(bgr[..., ::-1])
    write_image(tmp_path / "a.png", bgr)
    pil = image_module.fromarray(rgb)
    for image in (tmp_path / "a.png", str(tmp_path / "a.png"), pil, pil.convert("RGBA"), pil.quantize(256)):
        assert np.array_equal(to_bgr(image), bgr)
        assert np.array_equal(to_bgr(image, "rgb"), bgr), "only arrays have an order of channels"
    assert np.array_equal(to_bgr(rgb, "rgb"), bgr) and np.array_equal(
        to_bgr(np.dstack([rgb, rgb[..., :1]]), "rgb"), bgr
    )
    grey = np.full((5, 7), 200, np.uint8)
    for image in (image_module.fromarray(grey), image_module.fromarray(grey * np.uint16(257)), grey):
        assert np.array_equal(to_bgr(image, "rgb"), np.full((5, 7, 3), 200))
    with pytest.raises(DataError, match="channels must be"):
        to_bgr(rgb, "RGB")  # type: ignore[arg-type]


def test_a_format_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose"):
        write_image(tmp_path / "x.docx", np.zeros((2, 2, 3), np.uint8))
