"""Checkpoint files: written atomically and with a checksum, and read without running code from them.

A checkpoint is a zip file of ``torch.save``. Its comment, which zip readers and PyTorch ignore, holds a SHA-256 of the
whole file before it: ``head -c -64 FILE | sha256sum`` prints the last 64 characters of an intact file.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from posenet.errors import CheckpointError
from posenet.files import atomic_replacement, is_standard_output
from posenet.messages import truncate_for_message

FORMAT = 1
"""Version of the dictionary that a run saves."""
COMMENT_PREFIX = b"posenet-sha256:"
COMMENT_LENGTH = len(COMMENT_PREFIX) + 2 * hashlib.sha256().digest_size

_END_RECORD_SIGNATURE = b"PK\x05\x06"
_END_RECORD_SIZE = 22
_LENGTH_FIELD = COMMENT_LENGTH.to_bytes(2, "little")
"""The last two bytes of a zip file's end record: the length of the comment that follows it."""
_TAIL_SIZE = 4096
"""Bytes at the end in which the end record is searched: enough for our comment and some foreign bytes after it."""
_CHUNK_SIZE = 1 << 20


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint with its checksum, also the folder; ``path`` is the complete old or new file at any time.

    ``CheckpointError`` if the disk is full or failing, or permission is missing; then ``path`` is unchanged.
    """
    if is_standard_output(path):
        raise CheckpointError("a checkpoint cannot be written to standard output; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replacement(path) as temporary, open(temporary, "w+b") as file:
            torch.save(dict(state), file)
            file.seek(-len(_LENGTH_FIELD), os.SEEK_END)
            file.write(_LENGTH_FIELD + COMMENT_PREFIX)
            digest = _hex_digest(file, file.tell())
            file.seek(0, os.SEEK_END)
            file.write(digest)
    except (OSError, RuntimeError) as error:
        reason = _system_message(error) or "is the disk full?"
        raise CheckpointError(
            f"cannot write {path} ({reason}); free disk space or check the disk, older files are intact"
        ) from error


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint into host memory; code in the file is never run.

    ``CheckpointError`` if the file is missing, damaged or no checkpoint, has a newer format, or contains objects other
    than plain data.
    """
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(f"checkpoint {path} is a folder; give a file in it, such as last.pth")
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} is not a file; check the path")
    with open(path, "rb") as file:
        state = _read(file, path)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not contain a dictionary of weights; use another file")
    version = state.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise CheckpointError(
            f"{path} has format {truncate_for_message(version)}, newer than this program's {FORMAT}; update posenet"
        )
    return state


def _read(file: BinaryIO, path: Path) -> Any:
    try:
        _refuse_damaged(file, path)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of plain tensors: it is damaged, foreign, or contains code, which is never "
            "run; use another file"
        ) from error
    # The unpickler can raise almost any exception on arbitrary bytes; they all mean the same to the user.
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or not a PyTorch checkpoint; use an older one") from error


def _refuse_damaged(file: BinaryIO, path: Path) -> None:
    """Check what ``torch.load`` does not check: our checksum, compression, and the checksums of the zip entries."""
    matches = _verify_checksum(file)
    if matches is False:
        raise CheckpointError(f"checkpoint {path} is damaged (its checksum does not match); use an older one")
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        # A file that unpacks to more bytes than it has; many entries can refer to the same bytes.
        is_larger = sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size
        if is_larger or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise CheckpointError(f"checkpoint {path} is compressed, unlike those that PyTorch writes; unpack it first")
        damaged_entry = archive.testzip() if matches is None else None
    if damaged_entry is not None:
        raise CheckpointError(f"checkpoint {path} is damaged (entry {damaged_entry}); use an older one")


def _verify_checksum(file: BinaryIO) -> bool | None:
    """Whether a file matches its checksum; None for a foreign file, which has none.

    Two fields mark a file with a checksum: the prefix of the comment, and the length of the comment in the end record.
    Only damage to both makes it look like a foreign file.
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


def _system_message(error: BaseException) -> str | None:
    """The message of the ``OSError`` that caused an error of PyTorch, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause.strerror if cause is not None else None
