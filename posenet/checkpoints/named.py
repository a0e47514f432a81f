"""Published weights by name: downloaded once into the user's cache, checked, and then used as a file.

PyTorch is imported only to check a file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from posenet import downloading
from posenet.checkpoints.file import read_checkpoint, require_checkpoint_file
from posenet.downloading import DownloadError, limited, receive
from posenet.errors import CheckpointError
from posenet.messages import to_single_line

HOME_VARIABLE = "POSENET_HOME"
"""Environment variable with the folder of downloaded weights and other files that can be made again."""
_GOOGLE_DRIVE_PAGE = re.compile("https://drive.google.com/file/d/(.+)/view")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedWeights:
    """Where a file of weights comes from."""

    license: str
    """Terms of use of the weights."""
    url: str
    """Address of the file, or of its page on Google Drive."""
    description: str = ""


NAMED_WEIGHTS = {
    "simplepose": NamedWeights(
        description="Simple Pose (AAAI 2020) for COCO, published by the authors of the paper; the README of their code "
        "links it",
        url="https://drive.google.com/file/d/1gLa2oNxnbFPo0BjnpPaiAmWJwyND8wkA/view",
        license="none stated",
    ),
}
"""The weights that this program knows."""


def find_weights(name: str | Path) -> Path:
    """The file that a path or else the name of published weights means; downloaded if it is not in the cache.

    Raises:
        CheckpointError: there is no such file, the name is not known, or the weights cannot be downloaded or are not
            the expected ones.
    """
    text, path = str(name), Path(name)
    if path.name != text or path.suffix or path.exists():
        require_checkpoint_file(path)
        return path
    if text in NAMED_WEIGHTS:
        return fetch_weights(text, NAMED_WEIGHTS[text])
    known = ", ".join(NAMED_WEIGHTS)
    raise CheckpointError(f"{text} is neither a file nor the name of published weights ({known})")


def cache_folder() -> Path:
    """The user's folder for files that can be downloaded or made again, whether it is there or not.

    ``CheckpointError`` if nothing says where: some containers have no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(HOME_VARIABLE) or f"{cache}/posenet")
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"this user has no home folder for {folder}; set {HOME_VARIABLE} to a folder") from error


def cached_path(name: str, entry: NamedWeights) -> Path:
    """The file of published weights in the cache, whether it is there or not; the name depends on the source."""
    source = hashlib.sha256(entry.url.encode()).hexdigest()
    return cache_folder() / "weights" / f"{name}-{source[:8]}.pth"


def fetch_weights(name: str, entry: NamedWeights, progress: bool = True) -> Path:
    """The file of published weights, downloaded and checked if it is not in the cache.

    Several processes may call this at the same time: one downloads, the others wait. ``CheckpointError`` if the file
    cannot be downloaded or written, or is not the expected one.
    """
    path = cached_path(name, entry)
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                _log.info("Downloading %s from %s to %s; licence: %s", name, entry.url, path, entry.license)
                _download(entry.url, path, f"Downloading {name}" if progress else "")
    except (OSError, DownloadError, CheckpointError) as error:
        reason = getattr(error, "strerror", None) or to_single_line(str(error))
        raise CheckpointError(
            f"cannot download {name} from {entry.url} to {path.parent}: {reason}; try again, set {HOME_VARIABLE} to "
            "another folder, or download it with a browser and name the file with --checkpoint or --weights"
        ) from error
    return path


def _download(url: str, path: Path, title: str) -> None:
    """Download to a temporary name, check the file, and give it its final name. ``title`` is that of a progress bar."""
    temporary = path.with_name(f"{path.name}.download")
    try:
        with open(temporary, "wb") as file:
            if drive_page := _GOOGLE_DRIVE_PAGE.fullmatch(url):
                _receive_from_google_drive(drive_page[1], file, title)
            else:
                receive(url, file, title=title)
        try:
            read_checkpoint(temporary)  # code in it is never run
        except CheckpointError as error:
            raise CheckpointError("what has arrived is incomplete, or a web page, and not the weights") from error
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _receive_from_google_drive(file_id: str, file: BinaryIO, title: str) -> None:
    """Receive a public file of Google Drive; ``DownloadError`` if that fails or gdown is not installed."""
    try:
        import gdown
    except ImportError as error:
        raise DownloadError("downloads from Google Drive need gdown: pip install 'simplepose[weights]'") from error
    with limited(downloading.FILE_LIMITS, title) as check:
        timeout = downloading.SERVER_TIMEOUT
        gdown.download(id=file_id, output=file, quiet=True, use_cookies=False, progress=check, timeout=timeout)
