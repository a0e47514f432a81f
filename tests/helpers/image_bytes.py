"""Image files as bytes: JPEG and PNG files that declare any size, and JPEG files with an EXIF orientation."""

import struct
import zlib

import cv2
import numpy as np


def encode(image: np.ndarray, suffix: str = ".jpg", *parameters: int) -> bytes:
    """The bytes of an image file; ``parameters`` are those of ``cv2.imencode``."""
    return cv2.imencode(suffix, image, parameters)[1].tobytes()


def jpeg_declaring(height: int, width: int) -> bytes:
    """A JPEG file of some hundred bytes that declares any size."""
    data = encode(np.zeros((8, 8, 3), np.uint8))
    position = data.index(b"\xff\xc0") + 5
    return data[:position] + struct.pack(">HH", height, width) + data[position + 4 :]


def png_declaring(height: int, width: int) -> bytes:
    """A PNG file of some hundred bytes that declares any size, with the right checksum."""
    data = encode(np.zeros((8, 8, 3), np.uint8), ".png")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """A JPEG with an EXIF segment that holds only the orientation."""
    tiff = b"II*\0\x08\0\0\0\x01\0" + b"\x12\x01\x03\0\x01\0\0\0" + bytes([orientation, 0, 0, 0]) + b"\0\0\0\0"
    exif = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]
