"""Decode image files, after a check of the size that they declare."""

from __future__ import annotations

import io
import struct

import cv2
import numpy as np

MAX_PIXELS = 2**28
"""The largest image that is decoded, 16384 x 16384. A file of a hundred bytes can declare 16 times as many pixels."""
JPEG_START = b"\xff\xd8"
"""The first bytes of a JPEG file."""

_JPEG_END = b"\xff\xd9"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_REMEDY = "save it as JPEG or PNG, smaller if it is very large"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header, which contains the height and the width."""
_MARKERS_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
_ORIENTATION_TAG = 0x0112
_SCAN_MARKER = 0xDA
_HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis"))
"""The kinds of HEIC and AVIF files, which they state after ``ftyp`` (ISO/IEC 23008-12)."""
_COLOUR_FLAGS = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
"""OpenCV's flag for each factor by which it can reduce an image."""


def declared_size(data: np.ndarray | bytes) -> tuple[int, int] | None:
    """(height, width) in the header of a JPEG (ITU-T T.81, annex B) or PNG file; None for other or damaged files."""
    view = memoryview(data if isinstance(data, bytes) else data.data)
    if bytes(view[:8]) == _PNG_START and len(view) >= 24:
        width, height = struct.unpack(">II", view[16:24])
        return height, width
    if bytes(view[:2]) == JPEG_START:
        return _jpeg_size(view)
    return None


def _jpeg_size(view: memoryview) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(view):
        marker = view[position + 1]
        if view[position] != 0xFF or marker in (0x00, 0xFF):
            position += 1  # not a marker: continue the search, as the decoder does
        elif marker in _FRAME_MARKERS:
            height, width = struct.unpack(">HH", view[position + 5 : position + 9])
            return height, width
        elif marker == _SCAN_MARKER:
            return None
        elif marker in _MARKERS_WITHOUT_LENGTH:
            position += 2
        else:
            length = int.from_bytes(view[position + 2 : position + 4], "big")
            position += 2 + max(2, length)
    return None


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
    return _decode(data, cv2.IMREAD_COLOR if upright else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)


def exif_orientation(header: bytes) -> int:
    """Read the EXIF orientation of a JPEG file, 1-8; 1, upright, for other files and where there is none.

    Args:
        header: the file, or enough of its beginning.
    """
    start = header.find(b"Exif\0\0") + 6
    if not header.startswith(JPEG_START) or start < 6:
        return 1
    order = "<" if header[start : start + 2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", header, start + 4)
        (count,) = struct.unpack_from(f"{order}H", header, start + directory)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", header, start + directory + 2 + 12 * index)
            if tag == _ORIENTATION_TAG and 1 <= value <= 8:
                return int(value)
    except struct.error:  # damaged or cut off
        pass
    return 1


def _check_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ValueError(f"declares {width} x {height} pixels, more than any image; {_REMEDY}")


def decode_annotated_image(data: np.ndarray, height: int, width: int, reduction: int = 1) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image of a known size to (H, W, 3) uint8 BGR.

    The EXIF orientation is ignored, as in COCO's annotations.

    Args:
        height, width: the annotated size.
        reduction: 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up.

    Raises:
        ValueError: the bytes cannot be decoded, or the image does not have the annotated size.
    """
    size = declared_size(data)
    if size is not None and size != (height, width):
        raise ValueError(f"is {size[1]} x {size[0]} pixels, annotated as {width} x {height}")
    if height * width > MAX_PIXELS:
        raise ValueError(f"is annotated as {width} x {height} pixels, larger than any image")
    image = _decode(data, _COLOUR_FLAGS[reduction] | cv2.IMREAD_IGNORE_ORIENTATION)
    found_height, found_width = image.shape[:2]
    if (found_height, found_width) != (-(-height // reduction), -(-width // reduction)):
        found = f"{found_width * reduction} x {found_height * reduction}"
        raise ValueError(f"is {found} pixels, annotated as {width} x {height}")
    return image


def _decode(data: np.ndarray, flags: int) -> np.ndarray:
    if not len(data):
        raise ValueError("is empty (0 bytes); copy it or download it again")
    image = _decode_with_opencv(data, flags)
    if image is None and data[:2].tobytes() == JPEG_START:
        image = _decode_with_opencv(add_jpeg_end(data), flags)
    if image is None and data[4:8].tobytes() == b"ftyp" and data[8:12].tobytes() in _HEIF_BRANDS:
        return _decode_heif(data, upright=not flags & cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise ValueError(f"cannot be decoded; {_REMEDY}")
    return image


def _decode_with_opencv(data: np.ndarray, flags: int) -> np.ndarray | None:
    try:
        return cv2.imdecode(data, flags)
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


def _decode_heif(data: np.ndarray, *, upright: bool) -> np.ndarray:
    """Decode a HEIC or AVIF file. Its own rotation, which is not that of EXIF, is always followed."""
    try:
        import pillow_heif
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ValueError(f"is a HEIC or AVIF image: pip install 'posenet[heif]' to read it, or {_REMEDY}") from error
    pillow_heif.register_heif_opener()
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            _check_size(image.height, image.width)
            rgb = (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
    except (OSError, RuntimeError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot be decoded ({reason}); {_REMEDY}") from error
    return cv2.cvtColor(np.asarray(rgb), cv2.COLOR_RGB2BGR)
