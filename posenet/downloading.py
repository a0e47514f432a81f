"""Download files from web addresses, within limits of size and time.

``POSENET_DOWNLOAD_MAX_MIB`` and ``POSENET_DOWNLOAD_MAX_SECONDS`` replace the limits of all downloads.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import math
import os
import re
import shutil
import string
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from posenet.errors import ConfigError, DataError
from posenet.messages import to_single_line, truncate_for_message
from posenet.progress_bar import progress_bar

SIZE_VARIABLE = "POSENET_DOWNLOAD_MAX_MIB"
TIME_VARIABLE = "POSENET_DOWNLOAD_MAX_SECONDS"
IMAGE_LIMITS = (256, 60)
"""MiB and seconds for an image, which is kept in memory."""
FILE_LIMITS = (4096, 3600)
"""MiB and seconds for weights, which are written to a file."""
SERVER_TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""
MIN_FREE_BYTES = 2**26
"""A download leaves at least so much space on the disk."""
MAX_REASON = 200
"""Characters of the reason why a download has failed; what a server sends can be long."""

_MEBIBYTE = 2**20
_CHUNK_BYTES = 2**16
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_CREDENTIALS = re.compile(rf"({_SCHEME.pattern})([^/?#]*)@", re.IGNORECASE)

Result = TypeVar("Result")


class DownloadError(Exception):
    """Why a download has failed; the message does not name the file."""


def is_address(text: str) -> bool:
    """Whether a text is an address, such as https://example.org/a.jpg, and not a path."""
    return _SCHEME.match(text) is not None


def split_address(url: str) -> SplitResult:
    """The parts of an address without a user name and a password; empty parts of a malformed one."""
    try:
        return urlsplit(without_credentials(url))
    except ValueError:
        return SplitResult("", "", "", "", "")


def without_credentials(url: str) -> str:
    """An address, even a malformed one, without a user name and a password, for messages."""
    match = _CREDENTIALS.match(url)
    return match[1] + url[match.end() :] if match else url


class Download:
    """A download into an open file, within limits.

    Args:
        folder: where the file is; None if it is in memory.
        limits: MiB and seconds; the environment can replace them. ``ConfigError`` if its values are not positive.
    """

    def __init__(self, file: BinaryIO, folder: Path | None, limits: tuple[float, float]) -> None:
        self.file = file
        self.is_abandoned = threading.Event()
        self._folder = folder
        self._max_mebibytes = _read_number(SIZE_VARIABLE, limits[0])
        self._max_seconds = _read_number(TIME_VARIABLE, limits[1])
        self._size = 0
        self._length: int | None = None

    def check(self, size: int, length: int | None) -> None:
        """Raise ``DownloadError`` if no more may be written, when ``size`` of ``length`` bytes have arrived."""
        if self.is_abandoned.is_set():
            raise DownloadError("nobody waits for it")
        self._size = size
        self._length = length
        final_size = max(size, length or 0)
        if final_size > self._max_mebibytes * _MEBIBYTE:
            limit = f"{self._max_mebibytes:g} MiB"
            raise DownloadError(f"it has more than {limit}; set {SIZE_VARIABLE} to download larger files")
        if self._folder is None:
            return
        free = shutil.disk_usage(self._folder).free
        needed = final_size - size + MIN_FREE_BYTES
        if free < needed:
            raise DownloadError(
                f"folder {self._folder} has {free // _MEBIBYTE} MiB left, and {needed // _MEBIBYTE} MiB are needed; "
                "free some space, or choose another folder with POSENET_HOME"
            )

    def run(self, receive: Callable[[Download], Result], title: str) -> Result:
        """Call a function that writes the file, in a thread, and return what it returns; see ``download_file``.

        Only waiting for a thread limits the whole time: looking up a name has no limit, and that of a connection begins
        anew with each byte that arrives.
        """
        future: Future[Result] = Future()

        def call() -> None:
            try:
                future.set_result(receive(self))
            except (OSError, ValueError, http.client.HTTPException) as error:
                reason = (to_single_line(str(error)) or type(error).__name__)[:MAX_REASON]
                remedy = "; correct the address" if isinstance(error, ValueError) else ""
                future.set_exception(DownloadError(reason + remedy))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=call, daemon=True)
        end = time.monotonic() + self._max_seconds
        try:
            with progress_bar(title=title, unit="MiB", disable=not title) as bar:
                thread.start()
                while thread.is_alive():
                    if time.monotonic() > end:
                        limit = f"{self._max_seconds:g} s"
                        raise DownloadError(f"it takes more than {limit}; set {TIME_VARIABLE} to wait longer")
                    thread.join(0.1)
                    bar.total = self._length and self._length // _MEBIBYTE
                    bar.update(self._size // _MEBIBYTE - bar.n)
        finally:
            self.is_abandoned.set()
        return future.result()


def _read_number(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{variable} is {truncate_for_message(text)}; it must be a positive number")
    return number


def download_bytes(url: str) -> bytes:
    """Download a small file, such as an image, into memory; ``DataError``, which names the address, if that fails."""
    file = io.BytesIO()
    with _named_errors(url):
        Download(file, None, IMAGE_LIMITS).run(lambda download: receive(url, download), "")
    return file.getvalue()


def download_file(path: Path, receive: Callable[[Download], Result], title: str = "") -> Result:
    """Download a large file with a function such as ``receive``, and return what that returns.

    Args:
        receive: is called in another thread. It calls ``Download.check`` before and while it writes the file. If it
            takes too long, it is left alone, and ends at its next check.
        title: of a progress bar; without it there is none.

    Raises:
        DownloadError: the download fails. After this and all other errors there is no file.
    """
    try:
        # Opened and closed here, so that a thread that is left alone can neither make it again nor write to it.
        with open(path, "wb") as file:
            return Download(file, path.parent, FILE_LIMITS).run(receive, title)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class RedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https addresses, from encrypted to encrypted ones only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        fp.close()  # else the base class would read all of the answer, of any size
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise DownloadError(f"it is redirected to an address of another kind, {scheme}; give the final address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> http.client.HTTPResponse:
    """Open an address, which may have a user name and a password.

    Raises:
        DownloadError: it is no http or https address, or is redirected to another.
        ValueError: it is malformed.
        OSError, HTTPException: the server cannot be reached or refuses.
    """
    parts = urlsplit(without_credentials(url))
    if parts.scheme not in ("http", "https"):
        raise DownloadError("only http and https addresses can be downloaded; give a file as its path")
    if not parts.hostname or parts.port == 0:  # ValueError if it is no port
        raise ValueError("it has no host or no port")
    # People copy letters and spaces from browsers that must be encoded in a request.
    address = quote(without_credentials(url), safe=string.punctuation)
    request = urllib.request.Request(address, headers={"User-Agent": "posenet"})
    if credentials := _CREDENTIALS.match(url):
        # A server to which the answer redirects must not receive them.
        text = base64.b64encode(unquote(credentials[2]).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {text}")
    opener = urllib.request.build_opener(RedirectHandler)
    return cast(http.client.HTTPResponse, opener.open(request, timeout=SERVER_TIMEOUT))


def receive(url: str, download: Download) -> None:
    """Write what is at an http or https address to the file of a download; the errors are those of ``_open``."""
    with _open(url) as response:
        length = _stated_length(response)
        size = 0
        download.check(size, length)
        while data := response.read1(_CHUNK_BYTES):
            size += len(data)
            download.check(size, length)
            download.file.write(data)
    if length is not None and size < length:
        raise DownloadError(f"it ends early: {size} of {length} bytes arrived")


def _stated_length(response: http.client.HTTPResponse) -> int | None:
    """The length of the body that a server states; None without one. ``DownloadError`` if it is no length."""
    text = response.headers["Content-Length"]
    if text is None or "Transfer-Encoding" in response.headers:
        return None
    if not re.fullmatch("[0-9]{1,18}", text.strip()):
        raise DownloadError(f"its server states {truncate_for_message(text)} as its length in bytes")
    return int(text)


@contextlib.contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Turn the errors of a download, and of its file, into ``DataError`` with the address."""
    try:
        yield
    except (DownloadError, OSError) as error:
        raise DataError(f"cannot read {without_credentials(url)}: {error}") from error
