"""Weights by name: registered weights are downloaded once into the user's cache, checked, and then used as a file."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from posenet.checkpoints.contents import config_of_checkpoint, require_fitting_weights
from posenet.checkpoints.downloading import Report, download_google_drive, download_url
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.registry import HOME_VARIABLE, RegisteredWeights, home_folder, read_registries
from posenet.errors import CheckpointError, ConfigError
from posenet.files import flush_to_disk, write_atomically
from posenet.progress import progress_bar
from posenet.settings import Config

WEB_PAGE_STARTS = (b"<!doctype html", b"<html", b"<?xml")
"""Beginnings of pages that servers send instead of a file, in lower case."""

_log = logging.getLogger(__name__)


class FoundWeights(NamedTuple):
    """The file of a checkpoint."""

    path: Path
    config: Config | None
    """Configuration in the registry; None for a file that was given by its path."""


def find_weights(name: str | Path) -> FoundWeights:
    """The file that a path or the name of registered weights means; downloaded if it is not in the cache.

    An existing file comes before registered weights of the same name.

    Raises:
        CheckpointError: the name is not known, or the weights cannot be downloaded or are not the expected ones.
        ConfigError: a registry is not valid.
    """
    text = str(name)
    path = Path(name)
    looks_like_name = path.name == text and path.suffix not in (".pth", ".pt")
    if not looks_like_name:
        return FoundWeights(path, None)
    if path.is_file():
        with contextlib.suppress(ConfigError):  # a file needs no registry
            if text in read_registries():
                _log.info("%s is a file in the current folder, which comes before the registered weights", text)
        return FoundWeights(path, None)
    registered = read_registries()
    if text in registered:
        return FoundWeights(fetch_weights(registered[text]), registered[text].config())
    if path.exists() or path.suffix:
        return FoundWeights(path, None)  # a folder or a missing file, which the reader of checkpoints reports
    similar = difflib.get_close_matches(text, registered, n=3)
    suggestion = f"did you mean {' or '.join(similar)}? " if similar else ""
    raise CheckpointError(
        f"{text} is neither a file nor the name of registered weights; {suggestion}posenet weights list shows all names"
    )


def cached_path(entry: RegisteredWeights) -> Path:
    """The file of registered weights: in the cache, whether it is there or not, or the local file of the entry.

    The name depends on the source, so that an entry with a new source is downloaded again.
    """
    if entry.file:
        return entry.local_path
    source = hashlib.sha256(entry.source.encode()).hexdigest()
    return home_folder() / "weights" / f"{entry.name}-{source[:8]}.pth"


def fetch_weights(entry: RegisteredWeights, progress: bool = True) -> Path:
    """The checked file of registered weights, downloaded if it is not in the cache.

    Several processes may call this at the same time: one downloads, the others wait. A file that was copied into the
    cache by hand is checked like a downloaded one.

    Args:
        progress: whether to show a progress bar.

    Raises:
        CheckpointError: the file cannot be downloaded, is not the expected one or has changed.
    """
    path = cached_path(entry)
    if entry.file:
        if not path.is_file():
            raise CheckpointError(f"{entry.registry}: {entry.name} is the file {path}, which does not exist")
        return path
    if path.is_file() and _checksum_file(path).is_file():
        _require_checksum(path, path, entry)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _download_lock(path, entry.name):
            if not path.is_file():
                _download(entry, path, progress)
            elif not _checksum_file(path).is_file():
                _check(path, path, entry)
    except OSError as error:
        raise CheckpointError(
            f"cannot store {entry.name} in {path.parent}: {error.strerror or error}; make room there, or choose "
            f"another folder with {HOME_VARIABLE}"
        ) from error
    return path


def _download(entry: RegisteredWeights, path: Path, progress: bool) -> None:
    """Download to a temporary name, check the file, and give it its final name."""
    target = path.with_name(f"{path.name}.download")
    if not target.exists():  # it exists if the check of an earlier download was interrupted
        _log.info("Downloading %s from %s to %s; licence: %s", entry.name, entry.source, path, entry.license)
        with _download_bar(entry.name, progress) as report:
            if entry.google_drive:
                download_google_drive(entry.google_drive, target, report)
            else:
                download_url(entry.url, target, report)
    try:
        _check(target, path, entry)
    except CheckpointError:
        target.unlink()
        raise
    flush_to_disk(target)
    os.replace(target, path)
    _log.info("Downloaded %s", entry.name)


def _check(file: Path, path: Path, entry: RegisteredWeights) -> None:
    """Check a new file for ``path``: its checksum if one is known, and the names and shapes of its tensors.

    Its checksum is then remembered. Code in the file is never run.
    """
    with open(file, "rb") as stream:
        start = stream.read(64).lstrip().lower()
    if start.startswith(WEB_PAGE_STARTS):
        raise CheckpointError(
            f"{entry.source} sent a web page instead of {entry.name}; open the address in a browser to see why"
        )
    _require_checksum(file, path, entry)
    try:
        state = read_checkpoint(file)
        config = entry.config() or config_of_checkpoint(state, file) or Config()
        require_fitting_weights(config, state, file)
    except CheckpointError as error:
        reason = str(error).replace(str(file), "the file").partition("; ")[0]
        if file == path:
            raise CheckpointError(f"{path} does not contain {entry.name}: {reason}; delete it") from error
        raise CheckpointError(f"{entry.source} did not send {entry.name}: {reason}; check the source") from error
    write_atomically(_checksum_file(path), f"{_sha256(file)}  {path.name}\n".encode())


def _require_checksum(file: Path, path: Path, entry: RegisteredWeights) -> None:
    """Raise ``CheckpointError`` if a file has another checksum than in the registry or than the first download."""
    remembered = _checksum_file(path)
    first = remembered.read_text(encoding="utf-8").split() if remembered.is_file() else []
    expected = {"the registry states": entry.sha256, "the first download had": first[0] if first else ""}
    if not any(expected.values()):
        return
    actual = _sha256(file)
    for origin, checksum in expected.items():
        if checksum and checksum != actual:
            remedy = f"delete {path} to download it again" if file == path else f"if you trust it, delete {remembered}"
            if checksum == entry.sha256 and file != path:
                remedy = "the source has another file now"
            raise CheckpointError(
                f"{entry.name} from {entry.source} has the SHA-256 {actual}, but {origin} {checksum}; {remedy}"
            )


def _checksum_file(path: Path) -> Path:
    """The file with the checksum of the first download, as ``sha256sum`` writes it; it survives the download."""
    return path.with_name(f"{path.name}.sha256")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _download_lock(path: Path, name: str) -> Iterator[None]:
    """Within this context, no other process downloads to ``path``."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.info("Waiting for another process that downloads %s", name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _download_bar(name: str, progress: bool) -> Iterator[Report]:
    """A progress bar in megabytes; yields the function to report to."""
    with progress_bar(title=name, unit="MB", disable=not progress) as bar:

        def report(received: int, total: int | None) -> None:
            bar.total = None if total is None else round(total / 1e6, 1)
            bar.update(round(received / 1e6, 1) - bar.n)

        yield report
