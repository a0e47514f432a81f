"""A checksum that travels inside a zip file: SHA-256 over all of it, kept as the archive's comment.

Zip readers, PyTorch's among them, take no notice of a comment. ``head -c -64 FILE | sha256sum`` gives the last 64
characters of a sound file.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from typing import BinaryIO

MARK = b"posenet-sha256:"
LENGTH = len(MARK) + 2 * hashlib.sha256().digest_size
"""Bytes of the comment: the mark and the checksum of everything before the checksum, in hexadecimal."""
_END = b"PK\x05\x06"
_END_SIZE = 22
_COMMENT_LENGTH = LENGTH.to_bytes(2, "little")
"""The last two bytes of a zip file's end record, which the comment follows."""
_TAIL = 4096
"""How many bytes from the end the end record is looked for: enough for the seal, and for rubbish after it."""


def seal(file: BinaryIO) -> None:
    """Give a finished zip file without a comment, open for reading and writing, its checksum."""
    file.seek(-len(_COMMENT_LENGTH), os.SEEK_END)
    file.write(_COMMENT_LENGTH + MARK)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256")
    file.seek(0, os.SEEK_END)
    file.write(digest.hexdigest().encode())


def is_sound(file: BinaryIO) -> bool | None:
    """Whether a file is what was sealed; None where it never was, as far as one can see.

    A flipped bit and a cut are always found; so is all other damage that leaves the seal's mark or its length in place.
    What has lost both, at the very end of the file, passes for a file without a seal: zip's own checks are left.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(-min(size, _TAIL), os.SEEK_END)
    tail = file.read()
    if tail[-LENGTH:].startswith(MARK):
        return tail[len(MARK) - LENGTH :] == _digest(file, size - LENGTH + len(MARK))
    # An end record that announces a comment as long as a seal, and no seal: it is cut off, or its mark is damaged.
    end = tail.rfind(_END)
    return False if end >= 0 and tail[end + _END_SIZE - 2 : end + _END_SIZE] == _COMMENT_LENGTH else None


def _digest(file: BinaryIO, length: int) -> bytes:
    digest, left = hashlib.sha256(), length
    file.seek(0)
    while chunk := file.read(min(left, 1 << 20)):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest().encode()


def is_packed(file: BinaryIO) -> bool:
    """Whether a zip file would unpack to more than it is; PyTorch packs nothing. False of other files."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    return any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(
        entry.file_size for entry in entries
    ) > file.seek(0, os.SEEK_END)
