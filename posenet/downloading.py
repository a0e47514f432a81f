"""Download files from web addresses, within limits of size and time."""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import io
import re
import string
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from posenet.errors import DataError
from posenet.messages import to_single_line
from posenet.progress_bar import progress_bar

IMAGE_LIMITS = (256, 300)
"""MiB and seconds for an image, which is kept in memory."""
ANSWER_LIMITS = (1, 10)
"""MiB and seconds for the first bytes at an address."""
FILE_LIMITS = (4096, 4 * 3600)
"""MiB and seconds for weights, which are written to a file."""
SERVER_TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""
MAX_REASON = 200
"""Characters of the reason why a download has failed; what a server sends can be long."""

_OTHER_WAY = "download it with another program, and give the file"
_MEBIBYTE = 2**20
_CHUNK_BYTES = 2**16
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_CREDENTIALS = re.compile(rf"({_SCHEME.pattern})([^/?#]*)@", re.IGNORECASE)


class DownloadError(Exception):
    """Why a download has failed; the message does not name the file."""


def is_disk_full(error: Exception) -> bool:
    """Whether a file cannot be written because there is no space, or none for this user."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def is_address(text: str) -> bool:
    """Whether a text is an address, such as https://example.org/a.jpg, and not a path."""
    return _SCHEME.match(text) is not None


def is_data_address(text: str) -> bool:
    """Whether a text is an address that holds its content, such as data:image/png;base64,..."""
    return text[:5].lower() == "data:"


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
        limits: MiB and seconds.
        title: of a progress bar; without it there is none.
    """

    def __init__(self, file: BinaryIO, limits: tuple[float, float], title: str = "") -> None:
        self.file = file
        self._max_mebibytes, self._max_seconds = limits
        self._end = time.monotonic() + self._max_seconds
        self._title = title
        self._size = 0
        self._length: int | None = None

    def check(self, size: int, length: int | None) -> None:
        """Raise ``DownloadError`` if no more may be written, when ``size`` of ``length`` bytes have arrived."""
        if max(size, length or 0) > self._max_mebibytes * _MEBIBYTE:
            raise DownloadError(f"it has more than {self._max_mebibytes:g} MiB; {_OTHER_WAY}")
        self._check_time()
        self._size = size
        self._length = length

    def _check_time(self) -> None:
        if time.monotonic() > self._end:
            raise DownloadError(f"it takes more than {self._max_seconds:g} s; {_OTHER_WAY}")

    def run(self, receive: Callable[[Download], None]) -> None:
        """Call a function such as ``receive`` in a thread, and wait for it, within the limit of the time.

        Only waiting for a thread limits the whole time: looking up a name has no limit, and that of a connection begins
        anew with each byte that arrives. A thread for which nobody waits any more ends at its next check.
        """
        future: Future[None] = Future()

        def call() -> None:
            try:
                receive(self)
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=call, daemon=True)
        try:
            with progress_bar(title=self._title, unit="MiB", disable=not self._title) as bar:
                thread.start()
                while thread.is_alive():
                    self._check_time()
                    thread.join(0.1)  # Windows notices Ctrl-C only between two waits
                    bar.total = self._length and self._length // _MEBIBYTE
                    bar.update(self._size // _MEBIBYTE - bar.n)
        finally:
            self._end = 0.0
        future.result()


def download_bytes(url: str) -> bytes:
    """Download a small file, such as an image, into memory; ``DataError``, which names the address, if that fails."""
    file = io.BytesIO()
    try:
        Download(file, IMAGE_LIMITS).run(lambda download: receive(url, download))
    except DownloadError as error:
        raise DataError(f"cannot read {without_credentials(url)}: {error}") from error
    return file.getvalue()


def first_bytes(url: str, count: int) -> bytes:
    """The first bytes at an address, fewer if there are no more; none if the server does not send any."""
    received = io.BytesIO()

    def receive_start(download: Download) -> None:
        with _open(url) as response:
            while received.tell() < count and (data := response.read1(count - received.tell())):
                received.write(data)

    with contextlib.suppress(Exception):  # reading the whole will report that
        Download(io.BytesIO(), ANSWER_LIMITS).run(receive_start)
    return received.getvalue()


def download_file(path: Path, receive: Callable[[Download], None], title: str = "") -> None:
    """Download a large file with a function such as ``receive``, which calls ``Download.check`` while it writes.

    After an error there is no file.
    """
    try:
        # Opened and closed here, so that a thread for which nobody waits can neither make it again nor write to it.
        with open(path, "wb") as file:
            Download(file, FILE_LIMITS, title).run(receive)
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
    """Write what is at an http or https address to the file of a download; ``DownloadError`` if that fails.

    ``OSError`` if the disk is full. A server that sends nothing is left after ``SERVER_TIMEOUT``; ``Download.run``
    limits the whole time.
    """
    try:
        with _open(url) as response:
            length = response.length
            size = 0
            download.check(size, length)
            while data := response.read1(_CHUNK_BYTES):
                size += len(data)
                download.check(size, length)
                download.file.write(data)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if is_disk_full(error):
            raise
        reason = (to_single_line(str(error)) or type(error).__name__)[:MAX_REASON]
        remedy = "; correct the address" if isinstance(error, ValueError) else ""
        raise DownloadError(reason + remedy) from error
    if length is not None and size < length:
        raise DownloadError(f"it ends early: {size} of {length} bytes arrived")
