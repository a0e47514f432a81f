import os

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images.image_files import find_images, read_ahead, read_image, to_bgr, write_image


def with_orientation(jpeg, orientation):
    """A JPEG with an EXIF segment that holds nothing but the orientation."""
    tiff = b"II*\0\x08\0\0\0\x01\0" + b"\x12\x01\x03\0\x01\0\0\0" + bytes([orientation, 0, 0, 0]) + b"\0\0\0\0"
    exif = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]


def test_orientation_is_honoured_or_ignored(tmp_path):
    image = np.zeros((40, 60, 3), np.uint8)
    image[:20, :30] = 255
    path = tmp_path / "turned.jpg"
    path.write_bytes(with_orientation(cv2.imencode(".jpg", image)[1].tobytes(), 6))
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
def test_every_kind_becomes_8_bit_bgr(tmp_path, image):
    path = tmp_path / "bild ü.png"
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    for result in (read_image(path), to_bgr(image)):
        assert result.dtype == np.uint8 and result.shape == (*image.shape[:2], 3)
        assert (result == 200).all()


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1][:30]],
    ids=["empty", "text", "cut"],
)
def test_damaged_files_are_named(tmp_path, content):
    path = tmp_path / "bad.png"
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="bad.png"):
        read_image(path)


def test_a_png_that_claims_to_be_vast_is_refused(tmp_path):
    data = bytearray(cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes())
    data[16:24] = (10**6).to_bytes(4, "big") * 2
    (tmp_path / "vast.png").write_bytes(data)
    with pytest.raises(DataError, match="vast.png"):
        read_image(tmp_path / "vast.png")


def test_reading_ahead_keeps_the_order_and_hands_over_errors(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(30)]
    for i, path in enumerate(paths):
        if i != 7:
            write_image(path, np.full((2, 2, 3), i, np.uint8))
    images = list(read_ahead(paths, ahead=4))
    assert isinstance(images[7], DataError)
    assert [int(image[0, 0, 0]) for i, image in enumerate(images) if i != 7] == [i for i in range(30) if i != 7]


def touch(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")


def test_find_images(tmp_path):
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
def test_nothing_found_is_an_error(tmp_path, item, message):
    touch(tmp_path / "bare", "notes.txt")
    with pytest.raises(DataError, match=message):
        find_images([str(tmp_path / item)])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "out.json"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_unknown_format_is_refused(tmp_path):
    with pytest.raises(DataError, match="choose"):
        write_image(tmp_path / "x.docx", np.zeros((2, 2, 3), np.uint8))
