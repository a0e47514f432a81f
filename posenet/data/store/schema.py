"""What a store's HDF5 file holds; ``store`` reads it, ``writer`` writes it.

Layout. Three flat byte arrays hold the images' original bytes (``jpeg``) and the run lengths of the two masks, as
``rle`` stores them; ``*_offset`` arrays of one entry more than there are images say where each image's slice begins.
People lie in file order in ``joints``, ``box``, ``area`` and ``annotation_id``, sliced by ``person_offset``. ``sample``
has one (image row, person row within the image) for every main person. Nothing is filtered, so that reading is a slice.

Soundness. HDF5's own structures carry checksums (the layout of HDF5 1.10), which the library verifies as it follows
them. ``digest`` is of every image's bytes, ``checksum`` of these, its masks and joints; it is compared at each
reading. The attribute ``fingerprint`` is of all other arrays, compared on opening. A CRC-32 finds every flipped bit;
of damage at large it misses one in 2^32, and verifying a store, which compares ``digest`` as well, finds that.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping

import numpy as np

from posenet.data.store.record import Record
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import skeleton_to_table

FORMAT = "posenet store"
SCHEMA = 3
DIGEST_BYTES = 16
BLOBS = ("jpeg", "mask_all", "mask_miss")
SUPERBLOCKS = (b"\x89HDF\r\n\x1a\n\x02", b"\x89HDF\r\n\x1a\n\x03")
"""How an HDF5 file begins whose structures carry checksums."""
READ = (*BLOBS, "joints")
"""The arrays that are not held in memory."""


def columns(num_keypoints: int) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Name of every array but the flat ones: dtype, shape of one row, and what it has rows for."""
    return {
        "image_id": ("<i8", (), "images"),
        "file_name": ("S", (), "images"),
        "height": ("<i4", (), "images"),
        "width": ("<i4", (), "images"),
        "digest": ("u1", (DIGEST_BYTES,), "images"),
        "checksum": ("<u4", (), "images"),
        **{f"{name}_offset": ("<i8", (), "offsets") for name in (*BLOBS, "person")},
        "joints": ("<f4", (num_keypoints, 3), "people"),
        "box": ("<f4", (4,), "people"),
        "area": ("<f4", (), "people"),
        "annotation_id": ("<i8", (), "people"),
        "sample": ("<i8", (2,), "samples"),
    }


def content_digest(picture: np.ndarray) -> np.ndarray:
    """(16,) uint8, the first half of the SHA-256 of an image's bytes."""
    return np.frombuffer(hashlib.sha256(picture).digest()[:DIGEST_BYTES], np.uint8)


def checksum(record: Record) -> int:
    """CRC-32 of a record's image, masks and joints: a third of the digest's time, at every reading."""
    crc = 0
    for part in (record.jpeg, record.mask_all_rle, record.mask_miss_rle, np.ascontiguousarray(record.joints, "<f4")):
        crc = zlib.crc32(part, crc)
    return crc


def fingerprint(table: Mapping[str, np.ndarray]) -> str:
    """Hexadecimal digest of all arrays; images, masks and joints are in it through digest and checksum."""
    digest = hashlib.sha256()
    for name in sorted(set(table) - {*BLOBS, "joints"}):
        digest.update(np.ascontiguousarray(table[name]))
    return digest.hexdigest()


def describe(skeleton: Skeleton) -> str:
    """The skeleton as a store's attribute, JSON."""
    return json.dumps(
        {
            "keypoints": skeleton.keypoints,
            "derived": skeleton.derived,
            "parts": skeleton.parts,
            "table": skeleton_to_table(skeleton),
        }
    )
