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

from filelock import FileLock

from posenet.checkpoints.file import read_checkpoint, require_checkpoint_file
from posenet.downloading import SERVER_TIMEOUT, Download, DownloadError, download_file, is_disk_full, receive
from posenet.errors import CheckpointError
from posenet.messages import to_single_line
from posenet.settings.experiments import experiment_names

HOME_VARIABLE = "POSENET_HOME"
"""Environment variable with the folder of downloaded weights and other files that can be made again."""
MAX_REASON = 100
"""Characters of the reason why a download has failed; those of network libraries are long."""
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
    if text in experiment_names():
        raise CheckpointError(f"{text} is an experiment, not weights; training takes it by config=NAME")
    raise CheckpointError(f"{text} is neither a file nor the name of published weights ({', '.join(NAMED_WEIGHTS)})")


def cache_folder() -> Path:
    """The user's folder for files that can be downloaded or made again, whether it is there or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(HOME_VARIABLE) or f"{cache}/posenet").expanduser()


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
    remedy = "download it with a browser and give the file"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                _log.info("Downloading %s from %s to %s; licence: %s", name, entry.url, path, entry.license)
                _download(name, entry, path, f"Downloading {name}" if progress else "")
    except OSError as error:
        reason = f"cannot download {name} from {entry.url} to {path.parent}: {error.strerror or error}"
        raise CheckpointError(
            f"{reason}; free some space, set {HOME_VARIABLE} to another folder, or {remedy}"
        ) from error
    except DownloadError as error:
        reason = to_single_line(str(error))
        raise CheckpointError(f"cannot download {name} from {entry.url}: {reason}; try again, or {remedy}") from error
    return path


def _download(name: str, entry: NamedWeights, path: Path, title: str) -> None:
    """Download to a temporary name, check the file, and give it its final name. ``title`` is that of a progress bar."""
    temporary = path.with_name(f"{path.name}.download")
    receive_file = _receive_from_google_drive if _GOOGLE_DRIVE_PAGE.fullmatch(entry.url) else receive
    try:
        download_file(temporary, lambda download: receive_file(entry.url, download), title)
        try:
            read_checkpoint(temporary)  # code in it is never run
        except CheckpointError as error:
            raise CheckpointError(
                f"{entry.url} has not sent the weights {name}: the file is incomplete, or a web page; try again, "
                "or open the address in a browser to see why"
            ) from error
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _receive_from_google_drive(url: str, download: Download) -> None:
    """Receive a public file of Google Drive; ``CheckpointError`` if that fails or gdown is not installed.

    ``OSError`` if the disk is full.
    """
    remedy = f"download {url} with a browser, and name that file with --checkpoint or --weights"
    try:
        import gdown
    except ImportError as error:
        raise CheckpointError(
            f"downloads from Google Drive need the package gdown: pip install 'simplepose[weights]'; or {remedy}"
        ) from error
    try:
        gdown.download(
            id=_GOOGLE_DRIVE_PAGE.sub(r"\1", url),
            output=download.file,
            quiet=True,
            use_cookies=False,
            progress=download.check,
            timeout=SERVER_TIMEOUT,
        )
    except DownloadError:
        raise
    except Exception as error:  # a changed page of Google Drive can raise almost any error
        if is_disk_full(error):
            raise
        text = to_single_line(str(error).partition("\n")[0]).rstrip(".:")
        reason = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
        raise CheckpointError(f"Google Drive did not send the file: {reason}; try again later, or {remedy}") from error
