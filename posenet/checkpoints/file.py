"""Checkpoint files: written atomically, and read without running code from them.

A checkpoint is a file of ``torch.save``, a zip file with a checksum for each entry, which is verified.

Importing this module does not import PyTorch, and a missing file is reported without it.
"""

import errno
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from posenet.errors import CheckpointError, DamagedCheckpointError
from posenet.files import open_output
from posenet.messages import is_out_of_memory, truncate_for_message

FORMAT = 1
"""Version of the dictionary that a run saves."""
HOME_VARIABLE = "POSENET_HOME"
"""Environment variable with the folder of downloaded weights and other files that can be made again."""

_FOLDER_ATTRIBUTE = 0x10
_ENTRY_SIGNATURE = b"PK\x03\x04"
"""With these bytes begins what PyTorch reads as a zip file. It reads other files as its format before version 1.6."""


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, also its folder; ``path`` is the complete old or new file at any time.

    ``CheckpointError`` if the disk is full or failing, or permission is missing; then ``path`` is unchanged.
    """
    import torch

    try:
        with open_output(path) as file:
            torch.save(dict(state), file)
    except (OSError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "is the disk full?"
        raise CheckpointError(
            f"cannot write {path} ({reason}); free disk space or check the disk, older files are intact"
        ) from error


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint into host memory; code in the file is never run.

    Raises:
        DamagedCheckpointError: the file is damaged, or no file of plain data that PyTorch has written.
        CheckpointError: the file is missing, cannot be read now, has a newer format or contains no dictionary.
    """
    path = Path(path)
    require_checkpoint_file(path)
    import torch

    try:
        with open(path, "rb") as file:
            _check_archive(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    # The unpickler can raise almost any exception on arbitrary bytes; they all mean the same to the user, except for
    # those that say nothing about the file. A seek to a place that a damaged file names is an invalid argument.
    except Exception as error:
        if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            reason = getattr(error, "strerror", None) or "too little memory"
            raise CheckpointError(f"cannot read {path} ({reason}); try again, or use another file") from error
        raise DamagedCheckpointError(
            f"{path} is not a checkpoint of plain tensors: it is damaged, foreign, or contains code, which is never "
            "run; use another file"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not contain a dictionary of weights; use another file")
    version = state.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise CheckpointError(
            f"{path} has format {truncate_for_message(version)}, newer than this program's {FORMAT}; update posenet"
        )
    return state


def require_checkpoint_file(path: Path) -> None:
    """Raise ``CheckpointError`` unless a path is that of a file."""
    if not path.is_file():
        others = [path / "best.pth", path / "last.pth", path.parent / "last.pth"]
        remedy = next((f"there is {other}" for other in others if other.is_file()), "check the path")
        raise CheckpointError(f"checkpoint {path} is not a file; {remedy}")


def find_weights(name: str | Path) -> Path:
    """The file that a path or else the name of published weights means; downloaded if it is not in the cache.

    Raises:
        CheckpointError: there is no such file, the name is not known, or the weights cannot be downloaded or are not
            the expected ones.
    """
    text, path = str(name), Path(name)
    try:
        from posenet.checkpoints.published.weights import NAMED_WEIGHTS, fetch_weights
    except ModuleNotFoundError:  # a part of the package that may be left out
        require_checkpoint_file(path)
        return path
    # A folder of the name, such as a checkout, is in nobody's way.
    if path.name != text or path.suffix or (path.exists() and not (path.is_dir() and text in NAMED_WEIGHTS)):
        require_checkpoint_file(path)
        return path
    if text not in NAMED_WEIGHTS:
        known = ", ".join(NAMED_WEIGHTS)
        raise CheckpointError(f"{text} is neither a file nor the name of published weights ({known})")
    return fetch_weights(text)


def cache_folder() -> Path:
    """The user's folder for files that can be downloaded or made again; ``CheckpointError`` if there is no home."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(HOME_VARIABLE) or f"{cache}/posenet")
    try:
        return folder.expanduser()
    except RuntimeError as error:  # as in some containers
        raise CheckpointError(f"this user has no home folder for {folder}; set {HOME_VARIABLE} to a folder") from error


def _check_archive(file: BinaryIO) -> None:
    """Check what ``torch.load`` does not check: the compression and the checksums of the entries of a zip file."""
    if file.read(len(_ENTRY_SIGNATURE)) != _ENTRY_SIGNATURE:
        return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        # A small entry may unpack to much, as may many that refer to the same bytes.
        is_compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        is_larger = sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size
        # PyTorch reads nothing, and says nothing, where an entry is a folder. Of two entries with one name, only one is
        # verified.
        has_folders = any(entry.external_attr & _FOLDER_ATTRIBUTE for entry in entries)
        has_repeated_names = len({entry.filename for entry in entries}) < len(entries)
        if is_compressed or is_larger or has_folders or has_repeated_names or archive.testzip() is not None:
            raise zipfile.BadZipFile
