"""The layout of a store's HDF5 file. ``writer`` writes it and ``reader`` reads it.

Layout. Three flat byte arrays contain the original bytes of the image files and the packed run lengths of their two
masks (see ``run_lengths``). The array of the image bytes is called ``jpeg``, although an image may be a PNG or of
another format. This name is part of the file format and must not change. In Python it is ``Record.image_bytes``.

An array ``*_offset`` has one entry more than there are images: the slice of image i is from entry i to entry i + 1. The
people of all images are in ``joints``, ``box``, ``area`` and ``annotation_id``, in the order of the images;
``person_offset`` defines the slice of each image. ``sample`` has one row for every main person: the row of the image
and the row of the person within that image. No array is compressed, so a record is read by reading slices.

``orientation`` is the EXIF orientation, 1-8, by which the pixels of each image are turned to get the frame of its
annotations. The array is only present if an image is turned. Such a store has schema 4, so that older programs, which
would ignore the array, refuse it. All others have schema 3, as before.

Images without annotations have no people, and a ``mask_miss`` of zeros. Each has one sample with the person row
``NO_PERSON``. A store with such images has schema 5, and the array ``orientation``.

Integrity. The structures of HDF5 have checksums (in the layout of HDF5 1.10), which the library verifies when it reads
them. ``checksum`` is the CRC-32 of an image's bytes, masks and joints, verified whenever the record is read. ``digest``
is a SHA-256 of the image's bytes alone, verified by ``verify_store``. The attribute ``fingerprint`` is a SHA-256 of all
other arrays, verified when the store is opened. A CRC-32 detects every single flipped bit. It misses one in 2^32 cases
of larger damage to an image, which ``verify_store`` detects.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from posenet.data.store.record import Record
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import skeleton_to_table

FORMAT = "posenet store"
"""Value of the attribute ``format`` of every store."""
SCHEMA_VERSION = 3
"""Value of the attribute ``schema``, the version of the layout, of a store without ``orientation``."""
SCHEMA_WITH_ORIENTATION = 4
"""Value of the attribute ``schema`` of a store with ``orientation``."""
SCHEMA_UNLABELLED = 5
"""Value of the attribute ``schema`` of a store with images without annotations."""
NO_PERSON = -1
"""Person row of the sample of an image without annotations."""
DIGEST_BYTES = 16
"""Length of a digest: half of a SHA-256."""
HDF5_SIGNATURES = (b"\x89HDF\r\n\x1a\n\x02", b"\x89HDF\r\n\x1a\n\x03")
"""First bytes of HDF5 files with checksums of their structures: the signature and superblock version 2 or 3."""
BYTE_ARRAYS = ("jpeg", "mask_all", "mask_miss")
"""The flat arrays of bytes."""
ARRAYS_READ_ON_DEMAND = (*BYTE_ARRAYS, "joints")
"""The arrays that are read record by record. All others are kept in memory while a store is open."""


class ArraySpec(NamedTuple):
    """Type and shape of an array."""

    dtype: str
    row_shape: tuple[int, ...]
    rows: Literal["images", "offsets", "people", "samples"]
    """Number of rows: that of the images, people or samples; "offsets" is one more than the images."""


def array_specs(num_keypoints: int, version: int = SCHEMA_WITH_ORIENTATION) -> dict[str, ArraySpec]:
    """All arrays but ``BYTE_ARRAYS``, by name."""
    specs = {
        "image_id": ArraySpec("<i8", (), "images"),
        "file_name": ArraySpec("S", (), "images"),
        "height": ArraySpec("<i4", (), "images"),
        "width": ArraySpec("<i4", (), "images"),
        "digest": ArraySpec("u1", (DIGEST_BYTES,), "images"),
        "checksum": ArraySpec("<u4", (), "images"),
        "jpeg_offset": ArraySpec("<i8", (), "offsets"),
        "mask_all_offset": ArraySpec("<i8", (), "offsets"),
        "mask_miss_offset": ArraySpec("<i8", (), "offsets"),
        "person_offset": ArraySpec("<i8", (), "offsets"),
        "joints": ArraySpec("<f4", (num_keypoints, 3), "people"),
        "box": ArraySpec("<f4", (4,), "people"),
        "area": ArraySpec("<f4", (), "people"),
        "annotation_id": ArraySpec("<i8", (), "people"),
        "sample": ArraySpec("<i8", (2,), "samples"),
    }
    if version >= SCHEMA_WITH_ORIENTATION:
        specs["orientation"] = ArraySpec("u1", (), "images")
    return specs


def content_digest(image_bytes: np.ndarray) -> np.ndarray:
    """(16,) uint8: the first half of the SHA-256 of an image's bytes."""
    return np.frombuffer(hashlib.sha256(image_bytes.data).digest()[:DIGEST_BYTES], np.uint8)


def checksum(record: Record) -> int:
    """CRC-32 of a record's image, masks and joints. It takes a third of the time of the digest."""
    crc = zlib.crc32(record.image_bytes.data)
    crc = zlib.crc32(record.mask_all_rle, crc)
    crc = zlib.crc32(record.mask_miss_rle, crc)
    return zlib.crc32(np.ascontiguousarray(record.joints, "<f4").data, crc)


def fingerprint(table: Mapping[str, np.ndarray]) -> str:
    """SHA-256, in hexadecimal, of the arrays that are kept in memory.

    The other arrays influence it through ``digest`` and ``checksum``.
    """
    digest = hashlib.sha256()
    for name in sorted(set(table) - set(ARRAYS_READ_ON_DEMAND)):
        digest.update(np.ascontiguousarray(table[name]).data)
    return digest.hexdigest()


def skeleton_to_json(skeleton: Skeleton) -> str:
    """The value of the attribute ``skeleton``."""
    lists = {"keypoints": skeleton.keypoints, "derived": skeleton.derived, "parts": skeleton.parts}
    return json.dumps({**lists, "table": skeleton_to_table(skeleton)})
