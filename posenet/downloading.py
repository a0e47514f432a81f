"""Download files from web addresses, within limits of size and time.

``POSENET_DOWNLOAD_MAX_MIB`` and ``POSENET_DOWNLOAD_MAX_SECONDS`` replace the limits of all downloads.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import io
import math
import os
import re
import shutil
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tqdm import tqdm

from posenet.errors import ConfigError, DataError
from posenet.messages import to_single_line, truncate_for_message
from posenet.progress_bar import progress_bar

SIZE_VARIABLE = "POSENET_DOWNLOAD_MAX_MIB"
"""Environment variable with the size in MiB of the largest file that is downloaded."""
TIME_VARIABLE = "POSENET_DOWNLOAD_MAX_SECONDS"
"""Environment variable with the seconds after which a download is stopped."""
SERVER_TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""
MIN_FREE_BYTES = 2**26
"""A download leaves at least so much space on the disk."""
PLAYLIST_SUFFIXES = frozenset([".m3u8", ".mpd"])
"""Lists of the parts of a stream, which FFmpeg downloads itself."""
MAX_REASON = 200
"""Characters of the reason why a download has failed; what a server sends can be long."""

_MEBIBYTE = 2**20
_CHUNK_BYTES = 2**16
_ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]+://(?P<login>[^/?#]*@)?(?P<host>[^/?#]*?)(:\d*)?(?=[/?#]|$)(?P<path>[^?#]*)", re.IGNORECASE
)
"""An address, also a malformed one, which ``urlsplit`` refuses."""


class DownloadLimits(NamedTuple):
    """How large a file may be, and how long its download may take."""

    max_bytes: int
    max_seconds: float

    def or_from_environment(self) -> DownloadLimits:
        """These limits, or those in the environment; ``ConfigError`` if one there is not a positive number."""
        mebibytes = _read_number(SIZE_VARIABLE, self.max_bytes / _MEBIBYTE)
        return DownloadLimits(int(mebibytes * _MEBIBYTE), _read_number(TIME_VARIABLE, self.max_seconds))


IMAGE_LIMITS = DownloadLimits(2**28, 60.0)
"""Of an image, which is kept in memory: 256 MiB."""
FILE_LIMITS = DownloadLimits(2**32, 3600.0)
"""Of a video or of weights, which are written to a file: 4 GiB."""


def _read_number(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # A thread cannot wait for longer than this.
    if not 0 < number <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{variable} is {truncate_for_message(text)}; it must be a positive number")
    return number


class DownloadError(Exception):
    """Why a download has failed; the message does not name the file."""


def is_address(text: str) -> bool:
    """Whether a text is an address, such as https://example.org/a.jpg, and not a path."""
    return _ADDRESS.match(text) is not None


def host_of(url: str) -> str:
    """The host in an address, without its port; also in a malformed one."""
    match = _ADDRESS.match(url)
    return match["host"].strip("[]") if match else ""


def path_of(url: str) -> str:
    """The path in an address, without what follows ? or #; also in a malformed one."""
    match = _ADDRESS.match(url)
    return match["path"] if match else ""


def without_credentials(url: str) -> str:
    """An address without a user name and a password, for messages."""
    match = _ADDRESS.match(url)
    if match is None or not match["login"]:
        return url
    return url[: match.start("login")] + url[match.end("login") :]


class TimeLimit:
    """Ends the connections of a download when its time is over, in whatever the download then waits for.

    A limit for each answer of a server would not do: a server that sends one byte now and then keeps to it for ever.
    Leaving the context raises ``DownloadError`` if the time was over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def add(self, connection: socket.socket) -> None:
        """End this connection too when the time is over."""
        # A copy stays valid when a connection is encrypted, for which the original is replaced.
        copy = connection.dup()
        with self._lock:
            self._sockets.append(copy)
            if self.is_over.is_set():
                _shut_down(copy)

    def _end(self) -> None:
        with self._lock:
            self.is_over.set()
            for copy in self._sockets:
                _shut_down(copy)

    def __enter__(self) -> TimeLimit:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets.clear()
        if error is None or isinstance(error, Exception):
            self.check()

    def check(self) -> None:
        """Raise ``DownloadError`` if the time is over: a connection that was ended looks like the end of a file."""
        if self.is_over.is_set():
            raise DownloadError(f"it takes more than {self.seconds:g} s; set {TIME_VARIABLE} to wait longer")


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it
        connection.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """A connection that a time limit ends."""

    limit: TimeLimit

    def connect(self) -> None:
        super().connect()
        self.limit.add(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """The same, encrypted. The limit also holds while both sides agree on a key: the base class connects before."""


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """What certificates are trusted; reading them takes a while."""
    return ssl.create_default_context()


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens http and https addresses within a time limit."""

    def __init__(self, limit: TimeLimit) -> None:
        super().__init__(context=_tls_context())
        self._limit = limit

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(self._connection, _Connection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        connection = functools.partial(self._connection, _SecureConnection)
        return self.do_open(connection, request, context=_tls_context())

    def _connection(self, kind: type[_Connection], host: str, **options: Any) -> _Connection:
        connection = kind(host, **options)
        connection.limit = self._limit
        return connection


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https addresses, from encrypted to encrypted ones only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        fp.close()  # else the base class would read all of the answer, of any size
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (urlsplit(req.full_url).scheme, scheme) == ("https", "http"):
            raise DownloadError(f"it is redirected to an address of another kind, {scheme}; give the final address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_address(url: str, limit: TimeLimit, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Open an http or https address, which may have a user name and a password, with these request headers.

    Raises:
        DownloadError: it is another address, or is redirected to one.
        OSError, HTTPException, ValueError: the server cannot be reached or refuses, or it is no address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise DownloadError("only http and https addresses can be downloaded; give a file as its path")
    if not parts.hostname or parts.port == 0:  # ValueError if it is no port
        raise ValueError("it has no host, or no port that there is")
    login, _, host = parts.netloc.rpartition("@")
    if not host.isascii():
        host = host.encode("idna").decode()
    # Browsers show letters and spaces that an address must not contain, and so do people copy them.
    path, query = (quote(text, "%/:=&?~+!$,;'@()*[]", errors="surrogateescape") for text in (parts.path, parts.query))
    address = urlunsplit((parts.scheme, host, path, query, ""))
    request = urllib.request.Request(address, headers={"User-Agent": "posenet", **(headers or {})})
    credentials = unquote(login)
    if credentials:
        # A server to which the answer redirects must not receive them.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Handler(limit),
        urllib.request.HTTPDefaultErrorHandler(),
        _RedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    timeout = min(SERVER_TIMEOUT, limit.seconds)
    return cast(http.client.HTTPResponse, opener.open(request, timeout=timeout))


class LimitedWriter(io.RawIOBase):
    """Writes what is downloaded to a file, up to a size, and not onto a full disk; ``DownloadError`` beyond.

    Args:
        folder: where the file is; None if it is in memory.
        bar: counts MiB.

    Attributes:
        size: bytes that have been written.
    """

    def __init__(
        self, file: BinaryIO, max_bytes: int, *, folder: Path | None = None, bar: tqdm[Any] | None = None
    ) -> None:
        self.size = 0
        self._file = file
        self._max_bytes = max_bytes
        self._folder = folder
        self._bar = bar

    def expect(self, size: int) -> None:
        """Check before a download that a file of this size may be written."""
        self._check(size - self.size)
        if self._bar is not None:
            self._bar.total = size // _MEBIBYTE

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._check(len(data))
        self._file.write(data)
        self.size += len(data)
        if self._bar is not None:
            self._bar.update(self.size // _MEBIBYTE - self._bar.n)
        return len(data)

    def _check(self, more: int) -> None:
        """Raise ``DownloadError`` if so many bytes more are too many."""
        if self.size + more > self._max_bytes:
            limit = f"{self._max_bytes / _MEBIBYTE:g} MiB"
            raise DownloadError(f"it has more than {limit}; set {SIZE_VARIABLE} to download larger files")
        if self._folder is None:
            return
        free = shutil.disk_usage(self._folder).free
        if free < more + MIN_FREE_BYTES:
            needed = (self.size + more + MIN_FREE_BYTES) // _MEBIBYTE
            raise DownloadError(
                f"folder {self._folder} has {free // _MEBIBYTE} MiB left, and {needed} MiB are needed; free some space,"
                " or choose another folder with TMPDIR (videos) or POSENET_HOME (weights)"
            )


def download_bytes(url: str) -> bytes:
    """Download a small file, such as an image, into memory; ``DataError``, which names the address, if that fails."""
    file = io.BytesIO()
    limits = IMAGE_LIMITS.or_from_environment()
    with _named_errors(url), TimeLimit(limits.max_seconds) as limit, open_address(url, limit) as response:
        _receive(response, LimitedWriter(file, limits.max_bytes), limit)
    return file.getvalue()


@contextlib.contextmanager
def limited_file(path: Path, max_bytes: int, title: str = "") -> Iterator[LimitedWriter]:
    """Open a file to write a download to; it is removed if the block ends with an error.

    Args:
        title: of a progress bar; without it there is none.
    """
    try:
        with progress_bar(title=title, unit="MiB", disable=not title) as bar, open(path, "wb") as file:
            yield LimitedWriter(file, max_bytes, folder=path.parent, bar=bar)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def download_file(url: str, path: Path, title: str = "") -> None:
    """Download a large file, with a progress bar if it has a title; ``DownloadError`` if that fails."""
    limits = FILE_LIMITS.or_from_environment()
    with (
        _reasons(),
        TimeLimit(limits.max_seconds) as limit,
        open_address(url, limit) as response,
        limited_file(path, limits.max_bytes, title) as file,
    ):
        _receive(response, file, limit)


def _receive(
    response: http.client.HTTPResponse,
    file: LimitedWriter,
    limit: TimeLimit,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Write the body of an answer to a file; ``DownloadError`` if it is incomplete."""
    length = stated_length(response)
    if length is not None:
        file.expect(length)
    while data := response.read1(_CHUNK_BYTES):
        if stop_requested():
            raise DownloadError("the download was stopped")
        file.write(data)
    limit.check()
    if length is not None and file.size < length:
        raise DownloadError(f"it ends early: {file.size} of {length} bytes arrived")


def stated_length(response: http.client.HTTPResponse) -> int | None:
    """The length of the body that a server states; None without one. ``DownloadError`` if it is no length."""
    values = {value.strip() for value in response.headers.get_all("Content-Length", [])}
    if response.chunked or not values:
        return None
    stated = ", ".join(sorted(values))
    if not re.fullmatch("[0-9]{1,18}", stated):
        raise DownloadError(f"its server states {truncate_for_message(stated)} as its length in bytes")
    return int(stated)


@contextlib.contextmanager
def _reasons() -> Iterator[None]:
    """Turn all errors of a download into ``DownloadError``."""
    try:
        yield
    except http.client.IncompleteRead as error:
        raise DownloadError("it ends early") from error
    except (ValueError, http.client.InvalidURL) as error:
        raise DownloadError(f"{_shorten(error)}; correct the address") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DownloadError(_shorten(error)) from error


def _shorten(error: Exception) -> str:
    """The text of an error as a short line; of an error that urllib wraps, the inner text."""
    text = str(error.reason if type(error) is urllib.error.URLError else error)
    return (to_single_line(text) or type(error).__name__)[:MAX_REASON]


@contextlib.contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Turn all errors of a download into ``DataError`` with the address."""
    try:
        with _reasons():
            yield
    except DownloadError as error:
        raise DataError(f"cannot read {without_credentials(url)}: {error}") from error


class WebVideo(NamedTuple):
    """What is at the address of a video."""

    is_file: bool  # whether it is a file of a known length; else it may be a live stream
    copy: Path | None = None  # a downloaded copy, if FFmpeg cannot read the file at its address


def fetch_video(url: str, folder: Path, stop_requested: Callable[[], bool] = lambda: False) -> WebVideo:
    """Find out what is at an address, and download a file whose server does not send parts of it.

    FFmpeg jumps in a file to its index, which may be at the end, and needs a server that sends parts for that.

    Args:
        stop_requested: true ends the download, as an error.

    Raises:
        DataError: the download fails.
    """
    suffix = Path(path_of(url)).suffix
    if not url.lower().startswith(("http://", "https://")) or suffix.lower() in PLAYLIST_SUFFIXES:
        return WebVideo(is_file=False)
    limits = FILE_LIMITS.or_from_environment()
    with _named_errors(url), TimeLimit(limits.max_seconds) as limit:
        try:
            response = open_address(url, limit, {"Range": "bytes=0-"})
        except http.client.InvalidURL:
            raise
        except (OSError, http.client.HTTPException):
            return WebVideo(is_file=False)  # FFmpeg tells why
        with response:
            if "mpegurl" in response.headers.get_content_type() or stated_length(response) is None:
                return WebVideo(is_file=False)
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                return WebVideo(is_file=True)
            copy = folder / f"video{suffix}"
            with limited_file(copy, limits.max_bytes) as file:
                _receive(response, file, limit, stop_requested)
    return WebVideo(is_file=True, copy=copy)
