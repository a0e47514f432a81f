"""Checkpoints: unwrapped names, atomic writing, safe reading, remapping and fine-tuning."""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from posenet.checkpoints.checksum import is_packed, is_sound, seal
from posenet.errors import CheckpointError
from posenet.files import atomic_replacement
from posenet.messages import truncate_for_message

FORMAT = 1
"""Version of the dictionary a run saves; a newer one is refused."""

_log = logging.getLogger(__name__)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint file on the CPU, never running code from it.

    Raises:
        CheckpointError: missing, truncated, foreign, of a newer format, or holding objects that are not plain data.
    """
    if not (path := Path(path)).is_file():
        wrong = "is a folder; name a file in it, such as last.pth" if path.is_dir() else "is no file; check the path"
        raise CheckpointError(f"checkpoint {path} {wrong}")
    with open(path, "rb") as file:
        state = _parse(file, path)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds no dictionary of weights; use another file")
    version = state.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise CheckpointError(
            f"{path} has format {truncate_for_message(version)}, newer than this program's {FORMAT}; update posenet"
        )
    return state


def _parse(file: BinaryIO, path: Path) -> Any:
    try:
        if is_packed(file):
            raise CheckpointError(f"checkpoint {path} is compressed, which PyTorch's never are; unpack it first")
        sound = is_sound(file)
        if sound is False:
            raise CheckpointError(f"checkpoint {path} is damaged (its checksum does not match); use an older one")
        # Of files from elsewhere, torch.load does not look at the checksums that the zip container has of every entry.
        if sound is None and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise CheckpointError(f"checkpoint {path} is damaged (entry {damaged}); use an older one")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of plain tensors: damaged, foreign, or holding code, "
            "which is never run; use another file"
        ) from error
    # Arbitrary bytes make the unpickler raise almost anything; all of it means the same to the user.
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or not a PyTorch checkpoint; use an older one") from error


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, with its checksum, so that ``path`` holds its old content or all of the new, come what may.

    Raises:
        CheckpointError: no room, no permission, a failing disk; ``path`` is as it was.
    """
    try:
        with atomic_replacement(path) as temporary, open(temporary, "w+b") as file:
            torch.save(dict(state), file)
            seal(file)
    except (OSError, RuntimeError) as error:
        # PyTorch may make something of its own of what the system said.
        said: BaseException | None = error
        while said is not None and not isinstance(said, OSError):
            said = said.__context__
        reason = said.strerror if said is not None else "is the disk full?"
        raise CheckpointError(
            f"cannot write {path} ({reason}); make room or see to the disk, older files are intact"
        ) from error
