"""Decoding image files: the declared size, and the annotated size."""

from __future__ import annotations

import builtins
import io
import struct

import cv2
import numpy as np
import pytest

from posenet.images import add_jpeg_end, declared_size, decode_annotated_image, decode_image
from tests.helpers.image_bytes import encode, jpeg_declaring, png_declaring, with_orientation


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("height, width", [(1, 1), (480, 640), (65535, 3)])
def test_the_declared_size_is_read(height: int, width: int) -> None:
    for make in (jpeg_declaring, png_declaring):
        data = make(height, width)
        assert declared_size(data) == declared_size(as_array(data)) == (height, width)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8" + b"\xff" * 99,
        b"\xff\xd8\xff\xe0\0\0" + bytes(99),
        b"GIF89a" + bytes(99),
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_damaged_and_other_files_declare_no_size(data: bytes) -> None:
    assert declared_size(data) is None


def test_the_declared_size_is_found_behind_long_notes() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (33, 70, 3), np.uint8)
    note = b"\xff\xe1" + struct.pack(">H", 60000) + b"\xff\xc0" * 29999
    for parameters in ((), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)):
        data = encode(pixels, ".jpg", *parameters)
        assert declared_size(data[:2] + note * 3 + data[2:]) == (33, 70)


@pytest.mark.parametrize("make", [jpeg_declaring, png_declaring])
def test_a_file_that_declares_a_vast_image_is_refused(make) -> None:
    with pytest.raises(ValueError, match="declares 40000 x 30000 pixels"):
        decode_image(as_array(make(30000, 40000)))


def test_an_annotated_image_has_the_annotated_size() -> None:
    data = as_array(encode(np.zeros((60, 90, 3), np.uint8)))
    assert decode_annotated_image(data, 60, 90).shape == (60, 90, 3)
    assert decode_annotated_image(data, 60, 90, reduction=8).shape == (8, 12, 3)
    with pytest.raises(ValueError, match="is 90 x 60 pixels, annotated as 60 x 90"):
        decode_annotated_image(data, 90, 60)


def test_the_decoded_size_counts_where_none_is_declared() -> None:
    data = as_array(encode(np.zeros((60, 90, 3), np.uint8), ".bmp"))
    assert decode_annotated_image(data, 60, 90).shape == (60, 90, 3)
    with pytest.raises(ValueError, match="is 90 x 60 pixels, annotated as 91 x 60"):
        decode_annotated_image(data, 60, 91)
    with pytest.raises(ValueError, match="larger than any image"):
        decode_annotated_image(data, 30000, 30000)


def test_an_annotated_image_is_not_rotated() -> None:
    data = as_array(with_orientation(encode(np.zeros((60, 90, 3), np.uint8)), 6))
    assert decode_annotated_image(data, 60, 90).shape == (60, 90, 3)
    assert decode_image(data).shape == (90, 60, 3)


@pytest.mark.parametrize("data", [b"no image", jpeg_declaring(8, 8)[:100]], ids=["text", "cut"])
def test_damaged_bytes_cannot_be_decoded(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_image(as_array(data))


def test_a_file_without_bytes_is_empty() -> None:
    with pytest.raises(ValueError, match="is empty"):
        decode_image(as_array(b""))


NOISE = np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)
JPEG_KINDS = pytest.mark.parametrize("progressive", [0, 1], ids=["baseline", "progressive"])


@JPEG_KINDS
@pytest.mark.parametrize("missing", [1, 2])
def test_a_jpeg_without_its_end_marker_is_decoded(progressive: int, missing: int) -> None:
    data = encode(NOISE, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    assert np.array_equal(decode_image(as_array(data[:-missing])), decode_image(as_array(data)))
    assert np.array_equal(
        decode_annotated_image(as_array(data[:-missing]), 60, 90, 2), decode_annotated_image(as_array(data), 60, 90, 2)
    )


@JPEG_KINDS
@pytest.mark.parametrize("missing", [6, 100, 2000])
def test_a_jpeg_without_its_last_pixels_is_refused(progressive: int, missing: int) -> None:
    """OpenCV would compute these pixels from nothing."""
    data = as_array(encode(NOISE, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)[:-missing])
    for decode in (decode_image, add_jpeg_end):
        with pytest.raises(ValueError, match="is cut off"):
            decode(data)


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_heic_and_avif_are_decoded_upright(kind: str) -> None:
    image = np.zeros((40, 60, 3), np.uint8)
    image[:20, :30] = (250, 120, 10)
    data = heif(image, kind)
    decoded = decode_image(data)
    assert decoded.shape == (40, 60, 3) and decoded.dtype == np.uint8
    np.testing.assert_allclose(decoded[10, 10].astype(int), (250, 120, 10), atol=12)
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_image(data[:-100])


def heif(image: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of a HEIC or AVIF file of a BGR image."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[..., ::-1]).save(file, kind, quality=95)
    return as_array(file.getvalue())


def test_without_the_extra_heic_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_heif(name: str, *args: object) -> object:
        if name == "pillow_heif":
            raise ImportError
        return real_import(name, *args)  # type: ignore[arg-type]

    real_import = builtins.__import__
    data = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf"
    monkeypatch.setattr(builtins, "__import__", no_heif)
    with pytest.raises(ValueError, match=r"posenet\[heif\]"):
        decode_image(as_array(data))
