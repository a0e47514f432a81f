"""Published weights by name: downloaded once into the user's cache, checked, and then used as a file.

PyTorch is imported only to check a file.
"""

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from posenet.checkpoints.file import HOME_VARIABLE, cache_folder, read_checkpoint
from posenet.downloading import DownloadError, download_errors
from posenet.errors import CheckpointError
from posenet.files import atomic_replacement, remove_leftovers
from posenet.messages import to_single_line
from posenet.progress_bar import progress_bar

_log = logging.getLogger(__name__)


class NamedWeights(NamedTuple):
    """A file of weights on Google Drive."""

    description: str
    license: str
    drive_id: str

    @property
    def url(self) -> str:
        """The page of the file."""
        return f"https://drive.google.com/file/d/{self.drive_id}/view"


NAMED_WEIGHTS = {
    "simplepose": NamedWeights(
        description="Simple Pose (AAAI 2020) for COCO, published by the authors of the paper; the README of their code "
        "links it",
        license="none stated",
        drive_id="1gLa2oNxnbFPo0BjnpPaiAmWJwyND8wkA",
    ),
}
"""The weights that this program knows."""


def cached_path(name: str) -> Path:
    """The file of published weights in the cache, whether it is there or not."""
    source = hashlib.sha256(NAMED_WEIGHTS[name].url.encode()).hexdigest()
    return cache_folder() / "weights" / f"{name}-{source[:8]}.pth"


def fetch_weights(name: str) -> Path:
    """The file of published weights, downloaded and checked if it is not in the cache.

    Several processes may call this at the same time: one downloads, the others wait. ``CheckpointError`` if the file
    cannot be downloaded or written, or is not the expected one.
    """
    path = cached_path(name)
    if path.is_file():
        return path
    weights = NAMED_WEIGHTS[name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.is_file():
                return path
            _log.info("Downloading %s from %s to %s; licence: %s", name, weights.url, path, weights.license)
            remove_leftovers(path)
            with atomic_replacement(path) as temporary:
                _download(weights.drive_id, temporary, f"Downloading {name}")
    except (OSError, DownloadError, CheckpointError) as error:
        reason = getattr(error, "strerror", None) or to_single_line(str(error))
        raise CheckpointError(
            f"cannot download {name} from {weights.url} to {path.parent}: {reason}; try again, set {HOME_VARIABLE} to "
            "another folder, or download it with a browser and name the file with --checkpoint or --weights"
        ) from error
    return path


def _download(drive_id: str, path: Path, title: str) -> None:
    """Download a checkpoint, with a progress bar, and check it; code in it is never run."""
    try:
        import gdown
    except ImportError as error:
        raise DownloadError("downloads from Google Drive need gdown: pip install 'simplepose[weights]'") from error
    with open(path, "wb") as file, download_errors(), progress_bar(title=title, unit="MiB") as bar:
        gdown.download(
            id=drive_id,
            output=file,
            quiet=True,
            use_cookies=False,
            progress=lambda size, _: bar.update(size // 2**20 - bar.n),
        )
    try:
        read_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError("what has arrived is incomplete, or a web page, and not the weights") from error
