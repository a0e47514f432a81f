"""What the headers of image files declare: the size, and the EXIF orientation."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

JPEG_START = b"\xff\xd8"
"""The first bytes of a JPEG file."""
PNG_START = b"\x89PNG\r\n\x1a\n"
"""The first bytes of a PNG file."""

_EXIF_START = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header, which contains the height and the width."""
_MARKERS_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
_SCAN_MARKER = 0xDA
_EXIF_MARKER = 0xE1


def declared_size(data: np.ndarray | bytes) -> tuple[int, int] | None:
    """(height, width) in the header of an image file; None for other or damaged files.

    Read are JPEG (ITU-T T.81, annex B), PNG, and WebP files of the extended kind, the only one that has EXIF data.
    """
    view = _as_view(data)
    if bytes(view[:8]) == PNG_START and len(view) >= 24:
        width, height = struct.unpack(">II", view[16:24])
        return height, width
    if bytes(view[:2]) == JPEG_START:
        for marker, position in _jpeg_segments(view):
            if marker in _FRAME_MARKERS:
                height, width = struct.unpack(">HH", view[position + 5 : position + 9])
                return height, width
    if _is_webp(view) and bytes(view[12:16]) == b"VP8X" and len(view) >= 30:
        width = 1 + int.from_bytes(view[24:27], "little")
        height = 1 + int.from_bytes(view[27:30], "little")
        return height, width
    return None


def exif_orientation(data: np.ndarray | bytes) -> int:
    """Read the EXIF orientation of a JPEG, PNG or WebP file, 1-8; 1, upright, for others and where there is none.

    Decoders of TIFF, HEIC and AVIF files turn the pixels always or never, so these files need no orientation.

    Args:
        data: the bytes of the file, or enough of its beginning.
    """
    exif = _find_exif(_as_view(data))
    order = "<" if exif[:2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, directory)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, directory + 2 + 12 * index)
            if tag == _ORIENTATION_TAG and 1 <= value <= 8:
                return int(value)
    except struct.error:  # missing, damaged or cut off
        pass
    return 1


def _as_view(data: np.ndarray | bytes) -> memoryview:
    return memoryview(data if isinstance(data, bytes) else data.data)


def _is_webp(view: memoryview) -> bool:
    return bytes(view[:4]) == b"RIFF" and bytes(view[8:12]) == b"WEBP"


def _jpeg_segments(view: memoryview) -> Iterator[tuple[int, int]]:
    """The marker of every segment of a JPEG file before its first scan, and the position of the marker."""
    position = 2
    while position + 9 <= len(view):
        marker = view[position + 1]
        if view[position] != 0xFF or marker in (0x00, 0xFF):
            position += 1  # not a marker: continue the search, as the decoder does
        elif marker == _SCAN_MARKER:
            return
        elif marker in _MARKERS_WITHOUT_LENGTH:
            position += 2
        else:
            yield marker, position
            length = int.from_bytes(view[position + 2 : position + 4], "big")
            position += 2 + max(2, length)


def _find_exif(view: memoryview) -> bytes:
    """The EXIF data of a file, from their byte order on; empty if there are none."""
    exif = b""
    if bytes(view[:2]) == JPEG_START:
        for marker, position in _jpeg_segments(view):
            length = int.from_bytes(view[position + 2 : position + 4], "big")
            start = position + 4
            if marker == _EXIF_MARKER and bytes(view[start : start + len(_EXIF_START)]) == _EXIF_START:
                exif = bytes(view[start : position + 2 + length])
                break
    elif bytes(view[:8]) == PNG_START:
        exif = _find_chunk(view, b"eXIf", 8, ">I4s")
    elif _is_webp(view):
        exif = _find_chunk(view, b"EXIF", 12, "<4sI")
    return exif.removeprefix(_EXIF_START)


def _find_chunk(view: memoryview, name: bytes, position: int, header: str) -> bytes:
    """The content of the first chunk with a name; empty if there is none.

    Args:
        position: where the first chunk starts.
        header: the name and the length in ``struct``'s notation: ``>I4s`` in PNG files, ``<4sI`` in WebP files.
    """
    is_png = header == ">I4s"
    while position + 8 <= len(view):
        first, second = struct.unpack_from(header, view, position)
        length, found = (first, second) if is_png else (second, first)
        if found == name:
            return bytes(view[position + 8 : position + 8 + length])
        # A PNG chunk ends in a checksum of 4 bytes; a WebP chunk is padded to an even length.
        position += 8 + length + (4 if is_png else length % 2)
    return b""
