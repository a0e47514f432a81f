"""Decode image files, after a check of the size that they declare."""

from __future__ import annotations

import io

import cv2
import numpy as np

from posenet.images.headers import JPEG_START, declared_size, exif_orientation
from posenet.images.orientation import apply_orientation, oriented_size

MAX_PIXELS = 2**28
"""The largest image that is decoded, 16384 x 16384. A file of a hundred bytes can declare 16 times as many pixels."""

_JPEG_END = b"\xff\xd9"
_REMEDY = "save it as JPEG or PNG, smaller if it is very large"
_HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis"))
"""The kinds of HEIC and AVIF files, which they state after ``ftyp`` (ISO/IEC 23008-12)."""
_COLOUR_FLAGS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
"""OpenCV's flag for each factor by which it can reduce an image."""


def decode_image(data: np.ndarray, *, upright: bool = True) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image file, grey, transparent and 16-bit ones too, to (H, W, 3) uint8 BGR.

    Args:
        upright: rotate the image by its EXIF orientation.

    Raises:
        ValueError: the bytes cannot be decoded, or the file declares more than ``MAX_PIXELS``.
    """
    size = declared_size(data)
    if size is not None:
        _check_size(*size)
    image = _decode(data, cv2.IMREAD_COLOR)
    return apply_orientation(image, exif_orientation(data)) if upright else image


def _check_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ValueError(f"declares {width} x {height} pixels, more than any image; {_REMEDY}")


def decode_annotated_image(
    data: np.ndarray, height: int, width: int, reduction: int = 1, orientation: int = 1
) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image of a known size to (H, W, 3) uint8 BGR, in the frame of its annotations.

    Args:
        height, width: the annotated size.
        reduction: 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up.
        orientation: ``AnnotatedFrame.orientation``; 1 ignores the EXIF orientation of the file.

    Raises:
        ValueError: the bytes cannot be decoded, or the image does not have the annotated size.
    """
    size = declared_size(data)
    if size is not None:
        declared_height, declared_width = oriented_size(*size, orientation)
        if (declared_height, declared_width) != (height, width):
            raise ValueError(f"is {declared_width} x {declared_height} pixels, annotated as {width} x {height}")
    if height * width > MAX_PIXELS:
        raise ValueError(f"is annotated as {width} x {height} pixels, larger than any image")
    image = apply_orientation(_decode(data, _COLOUR_FLAGS[reduction]), orientation)
    found_height, found_width = image.shape[:2]
    if (found_height, found_width) != (-(-height // reduction), -(-width // reduction)):
        found = f"{found_width * reduction} x {found_height * reduction}"
        raise ValueError(f"is {found} pixels, annotated as {width} x {height}")
    return image


def _decode(data: np.ndarray, flags: int) -> np.ndarray:
    """Decode the pixels as stored; those of HEIC and TIFF files as displayed, which is their only frame here."""
    if not len(data):
        raise ValueError("is empty (0 bytes); copy it or download it again")
    image = _decode_with_opencv(data, flags)
    if image is None and data[:2].tobytes() == JPEG_START:
        image = _decode_with_opencv(add_jpeg_end(data), flags)
    if image is None and data[4:8].tobytes() == b"ftyp" and data[8:12].tobytes() in _HEIF_BRANDS:
        return _decode_heif(data)
    if image is None:
        raise ValueError(f"cannot be decoded; {_REMEDY}")
    return image


def _decode_with_opencv(data: np.ndarray, flags: int) -> np.ndarray | None:
    try:
        return cv2.imdecode(data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ValueError(f"cannot be decoded ({error.err or error}); {_REMEDY}") from error


def add_jpeg_end(data: np.ndarray) -> np.ndarray:
    """Add the end marker to a JPEG file without one.

    Raises:
        ValueError: more than the end marker is missing, or the file is damaged.
    """
    start = data.tobytes().rstrip(b"\xff")  # a lone 0xff is the first half of the marker
    # A decoder computes missing pixels from whatever follows. If two continuations decode to the same image, none is
    # missing.
    continuations = [np.frombuffer(start + filler + _JPEG_END, np.uint8) for filler in (b"", b"\x55" * 64)]
    first, second = (_decode_with_opencv(file, cv2.IMREAD_COLOR) for file in continuations)
    if first is None:
        raise ValueError(f"cannot be decoded; {_REMEDY}")
    if second is None or not np.array_equal(first, second):
        raise ValueError("is cut off: the JPEG data end early; copy it or download it again")
    return continuations[0]


def _decode_heif(data: np.ndarray) -> np.ndarray:
    """Decode a HEIC or AVIF file as displayed: its own rotation and, where it has one, that of EXIF are followed."""
    try:
        import pillow_heif
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ValueError(f"is a HEIC or AVIF image: pip install 'posenet[heif]' to read it, or {_REMEDY}") from error
    pillow_heif.register_heif_opener()
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            _check_size(image.height, image.width)
            rgb = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, RuntimeError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot be decoded ({reason}); {_REMEDY}") from error
    return cv2.cvtColor(np.asarray(rgb), cv2.COLOR_RGB2BGR)
