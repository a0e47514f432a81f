"""Checkpoint files: written atomically and with a checksum, and read without running code from them."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from posenet.checkpoints.checksum import append_checksum, is_compressed, verify_checksum
from posenet.errors import CheckpointError
from posenet.files import atomic_replacement, is_standard_output
from posenet.messages import truncate_for_message

FORMAT = 1
"""Version of the dictionary that a run saves."""


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint into host memory; code in the file is never run.

    Raises:
        CheckpointError: the file is missing, truncated, damaged or not a checkpoint, has a newer format, or contains
            objects other than plain data.
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
    """Check what ``torch.load`` does not check: compression, our checksum, and the checksums of the zip entries."""
    if is_compressed(file):
        raise CheckpointError(f"checkpoint {path} is compressed, unlike those that PyTorch writes; unpack it first")
    matches = verify_checksum(file)
    if matches is False:
        raise CheckpointError(f"checkpoint {path} is damaged (its checksum does not match); use an older one")
    if matches is None and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            damaged_entry = archive.testzip()
        if damaged_entry is not None:
            raise CheckpointError(f"checkpoint {path} is damaged (entry {damaged_entry}); use an older one")


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint with its checksum; ``path`` is the complete old or the complete new file at any time.

    The folder is created if necessary.

    Raises:
        CheckpointError: the disk is full or failing, or permission is missing; ``path`` is unchanged.
    """
    if is_standard_output(path):
        raise CheckpointError("a checkpoint cannot be written to standard output; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replacement(path) as temporary, open(temporary, "w+b") as file:
            torch.save(dict(state), file)
            append_checksum(file)
    except (OSError, RuntimeError) as error:
        reason = _system_message(error) or "is the disk full?"
        raise CheckpointError(
            f"cannot write {path} ({reason}); free disk space or check the disk, older files are intact"
        ) from error


def _system_message(error: BaseException) -> str | None:
    """The message of the ``OSError`` that caused an error of PyTorch, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause.strerror if cause is not None else None
