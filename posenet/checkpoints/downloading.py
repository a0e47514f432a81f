"""Downloading large files, from a web server or from Google Drive, so that a broken download can be continued."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

from posenet.downloading import TIMEOUT, open_address, without_credentials
from posenet.errors import CheckpointError
from posenet.messages import to_single_line

MAX_BYTES = 2**34
"""Size of the largest file that is downloaded, so that a server cannot fill a disk without end."""
MAX_FAILURES = 5
"""Connections in a row that fail without a new byte, after which a download ends."""
RETRY_SECONDS = 1.0
"""Pause after the first failure; it doubles after every further one."""
GDOWN_MISSING = "downloads from Google Drive need the package gdown: pip install 'posenet[weights]'"

_CHUNK_SIZE = 1 << 20
_TEMPORARY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which it makes sense to try again."""

Report = Callable[[int, int | None], None]
"""Receives the number of bytes so far and the total, None if it is unknown."""


class _ConnectionLost(Exception):
    """A connection failed in a way that may not happen again."""


def download_url(url: str, target: Path, report: Report) -> None:
    """Download a file, which may continue an earlier download to the same ``target``.

    The bytes so far are in ``TARGET.part``, and ``TARGET.version`` holds the server's mark of their version, with which
    the server recognises whether the file has changed since.

    Raises:
        CheckpointError: the server does not send the file, or the connection fails repeatedly.
        OSError: the file cannot be written; the bytes so far are kept.
    """
    part = target.with_name(f"{target.name}.part")
    version = target.with_name(f"{target.name}.version")
    failures = 0
    most_bytes = _size(part)
    while True:
        try:
            _receive(url, part, version, report)
            break
        except _ConnectionLost as error:
            failures = 0 if _size(part) > most_bytes else failures + 1
            most_bytes = max(most_bytes, _size(part))
            if failures == MAX_FAILURES:
                raise CheckpointError(
                    f"cannot download {without_credentials(url)}: {error}; try again later"
                ) from error
            time.sleep(RETRY_SECONDS * 2**failures)
    version.unlink(missing_ok=True)
    os.replace(part, target)


def _receive(url: str, part: Path, version: Path, report: Report) -> None:
    """Append the rest of the file to ``part``, or write all of it if the server cannot continue."""
    offset = _size(part)
    known_version = version.read_text(encoding="utf-8") if version.exists() else ""
    headers = {"Range": f"bytes={offset}-", "If-Range": known_version} if offset and known_version else {}
    try:
        response = open_address(url, headers)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # more bytes than the file has: start again
            part.unlink(missing_ok=True)
            raise _ConnectionLost("the server has another file now") from error
        if error.code in _TEMPORARY_STATUSES:
            raise _ConnectionLost(f"HTTP status {error.code}") from error
        name = without_credentials(url)
        raise CheckpointError(f"cannot download {name}: HTTP status {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(to_single_line(str(error))) from error
    with response:
        continues = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
        if response.status == 206 and not continues:
            part.unlink(missing_ok=True)
            raise _ConnectionLost("the server sent other bytes than it was asked for")
        received = offset if continues else 0
        length = response.headers.get("Content-Length")
        total = received + int(length) if length and length.isdecimal() else None
        with open(part, "ab" if continues else "wb") as file:
            # Written when the old bytes are gone, so that a kill in between cannot join bytes of two versions.
            version.write_text(_version_of(response), encoding="utf-8")
            while chunk := _read_chunk(response):
                file.write(chunk)
                received += len(chunk)
                report(received, total)
                if received > MAX_BYTES:
                    raise CheckpointError(f"{without_credentials(url)} sends more than {MAX_BYTES >> 30} GiB; check it")
    if total is not None and received < total:
        raise _ConnectionLost(f"the connection was cut after {received} of {total} bytes")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK_SIZE)
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(to_single_line(str(error)) or type(error).__name__) from error


def _version_of(response: http.client.HTTPResponse) -> str:
    """What marks the version of a file; empty if the server does not say. A weak ETag does not mark equal bytes."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


def download_google_drive(file_id: str, target: Path, report: Report) -> None:
    """Download a public file of Google Drive, which may continue an earlier download to the same ``target``.

    Raises:
        CheckpointError: the package gdown is not installed, or Google Drive does not send the file.
        OSError: the file cannot be written; the bytes so far are kept.
    """
    remedy = f"download https://drive.google.com/file/d/{file_id}/view with a browser, and give that file"
    try:
        import gdown
        import requests
    except ImportError as error:
        raise CheckpointError(f"{GDOWN_MISSING}; or {remedy}") from error
    parts = sorted(target.parent.glob(f"{target.name}????????.part"), key=_size)
    for smaller in parts[:-1]:  # gdown continues only if there is one
        smaller.unlink()
    size_before = _size(parts[-1]) if parts else 0
    latest = size_before

    def report_and_limit(received: int, total: int | None) -> None:
        nonlocal latest
        latest = received
        report(received, total)
        if received > MAX_BYTES:
            raise CheckpointError(f"Google Drive sends more than {MAX_BYTES >> 30} GiB; check the file")

    def download() -> None:
        gdown.download(
            id=file_id,
            output=str(target),
            quiet=True,
            use_cookies=False,
            resume=True,
            progress=report_and_limit,
            timeout=TIMEOUT,
            retries=MAX_FAILURES - 1,
        )

    try:
        try:
            download()
        except gdown.FileURLRetrievalError:
            raise
        except gdown.DownloadError as error:
            lost_connection = isinstance(error.__cause__, requests.RequestException)
            if not size_before or latest > size_before or lost_connection:
                raise
            # Google Drive did not continue the file, because it has changed, for example: start again.
            parts[-1].unlink(missing_ok=True)
            download()
    except KeyError as error:
        raise CheckpointError(f"Google Drive sent an answer without {error}; try again later, or {remedy}") from error
    except (gdown.DownloadError, requests.RequestException) as error:
        # The first error of a page with an explanation holds only the explanation.
        is_page = isinstance(error, gdown.FileURLRetrievalError) and error.__context__ is not None
        reason = to_single_line(str(error.__context__ if is_page else error).partition("\n")[0]).rstrip(".")
        raise CheckpointError(f"Google Drive did not send the file: {reason}; try again later, or {remedy}") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
