"""Web addresses: whether a text is one, images at one within limits of size and time, and errors of downloads."""

import base64
import contextlib
import errno
import http.client
import re
import string
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import SplitResult, quote, unquote, urlsplit

from posenet.errors import DataError
from posenet.messages import MAX_REASON, to_single_line

MAX_MEBIBYTES = 256
MAX_SECONDS = 300
"""Limits of an image, which is kept in memory."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_CREDENTIALS = re.compile(rf"({_SCHEME.pattern})([^/?#]*)@", re.IGNORECASE)


class DownloadError(Exception):
    """Why a download has failed; the message does not name the file."""


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


@contextlib.contextmanager
def download_errors() -> Iterator[None]:
    """Within this context, any error but that of a full disk becomes a ``DownloadError``."""
    try:
        yield
    except DownloadError:
        raise
    except Exception as error:  # a server can make urllib and gdown raise almost any
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = to_single_line(str(error).partition("\n")[0]) or type(error).__name__
        raise DownloadError(reason[:MAX_REASON]) from error


def download_bytes(url: str) -> bytes:
    """Download an image into memory; ``DataError``, which names the address, if that fails."""
    end = time.monotonic() + MAX_SECONDS
    data = bytearray()
    try:
        with download_errors(), _open(url) as response:
            length = response.length or 0
            while part := response.read1(2**16):
                data += part
                if max(len(data), length) > MAX_MEBIBYTES * 2**20 or time.monotonic() > end:
                    raise DownloadError(
                        f"it has more than {MAX_MEBIBYTES:g} MiB or takes more than {MAX_SECONDS:g} s; download it "
                        "with another program, and give the file"
                    )
            if len(data) < length:
                raise DownloadError(f"it ends early: {len(data)} of {length} bytes arrived")
    except DownloadError as error:
        raise DataError(f"cannot read {without_credentials(url)}: {error}; check the address") from error
    return bytes(data)


def first_bytes(url: str, count: int) -> bytes:
    """The first bytes at an address, fewer if there are no more; none if the server does not send any."""
    try:
        with download_errors(), _open(url) as response:
            return response.read(count)
    except DownloadError:  # reading the whole will report that
        return b""


def _open(url: str) -> http.client.HTTPResponse:
    """Open an http or https address, which may have a user name and a password."""
    parts = urlsplit(without_credentials(url))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # ValueError if it is no port
        raise DownloadError("only http and https addresses of a host can be downloaded; give a file as its path")
    # People copy letters and spaces from browsers that must be encoded in a request.
    address = quote(without_credentials(url), safe=string.punctuation)
    request = urllib.request.Request(address, headers={"User-Agent": "posenet"})
    if credentials := _CREDENTIALS.match(url):
        # A server to which the answer redirects must not receive them.
        text = base64.b64encode(unquote(credentials[2]).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {text}")
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=30)  # seconds without an answer
    return response
