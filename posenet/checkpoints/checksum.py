"""A SHA-256 checksum at the end of a zip file, such as a PyTorch checkpoint.

The checksum covers the whole file before it and is stored in the archive's comment, which zip readers and PyTorch
ignore. ``head -c -64 FILE | sha256sum`` prints the last 64 characters of an intact file.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from typing import BinaryIO

COMMENT_PREFIX = b"posenet-sha256:"
COMMENT_LENGTH = len(COMMENT_PREFIX) + 2 * hashlib.sha256().digest_size
"""Bytes of the comment: the prefix, and the checksum in hexadecimal."""

_END_RECORD_SIGNATURE = b"PK\x05\x06"
_END_RECORD_SIZE = 22
_LENGTH_FIELD = COMMENT_LENGTH.to_bytes(2, "little")
"""The last two bytes of a zip file's end record: the length of the comment that follows it."""
_TAIL_SIZE = 4096
"""Bytes at the end in which the end record is searched: enough for our comment and some foreign bytes after it."""
_CHUNK_SIZE = 1 << 20


def append_checksum(file: BinaryIO) -> None:
    """Write the checksum into the comment of a complete zip file that has none; ``file`` is open for update."""
    file.seek(-len(_LENGTH_FIELD), os.SEEK_END)
    file.write(_LENGTH_FIELD + COMMENT_PREFIX)
    digest = _hex_digest(file, file.tell())
    file.seek(0, os.SEEK_END)
    file.write(digest)


def verify_checksum(file: BinaryIO) -> bool | None:
    """Compare a file with its checksum.

    Returns:
        True if they match, False if the file is damaged, None for a foreign file, which has no checksum.

    A flipped bit and a truncation are always detected, because two fields mark a file with a checksum: the prefix of
    the comment, and the length of the comment in the end record. Only damage to both makes it look like a foreign file,
    for which the checksums of the zip entries remain.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(-min(size, _TAIL_SIZE), os.SEEK_END)
    tail = file.read()
    comment = tail[-COMMENT_LENGTH:]
    if comment.startswith(COMMENT_PREFIX):
        stored_digest = comment[len(COMMENT_PREFIX) :]
        return stored_digest == _hex_digest(file, size - len(stored_digest))
    # If the end record announces a comment of our length, the comment is truncated or its prefix is damaged.
    end_record = tail.rfind(_END_RECORD_SIGNATURE)
    if end_record >= 0 and tail[end_record:][:_END_RECORD_SIZE].endswith(_LENGTH_FIELD):
        return False
    return None


def _hex_digest(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first ``length`` bytes of a file, in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(min(length, _CHUNK_SIZE)):
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest().encode()


def is_compressed(file: BinaryIO) -> bool:
    """Whether a file is a zip file that unpacks to more bytes than it has; PyTorch does not write such files."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return True
    # Many entries can refer to the same bytes.
    return sum(entry.file_size for entry in entries) > file.seek(0, os.SEEK_END)
