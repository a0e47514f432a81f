"""Read image and video files at web addresses."""

from __future__ import annotations

import base64
import http.client
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

import numpy as np

from posenet.errors import DataError
from posenet.images import decode_image

TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""
MAX_BYTES = 2**28
"""Size of the largest file that is downloaded as an image."""
PLAYLIST_SUFFIXES = frozenset([".m3u8", ".mpd"])
"""Lists of the parts of a stream, which FFmpeg downloads itself."""


def without_credentials(url: str) -> str:
    """An address without a user name and a password, for messages."""
    address = urlsplit(url)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def open_address(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Open an address, which may have a user name and a password, with these request headers.

    ``OSError``, ``HTTPException`` or ``ValueError`` if the server cannot be reached or refuses, or it is no address.
    """
    request = urllib.request.Request(without_credentials(url), headers=dict(headers or {}))
    credentials = unquote(urlsplit(url).netloc.rpartition("@")[0])
    if credentials:
        # A server to which the answer redirects must not receive them.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=TIMEOUT))


def download_image(url: str) -> np.ndarray:
    """Read the image at an address (http, https or ftp): (H, W, 3) uint8 BGR, upright.

    ``DataError`` if it cannot be downloaded, is too large, or is not an image that OpenCV can decode.
    """
    name = without_credentials(url)
    try:
        with open_address(url) as response:
            data = response.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"cannot read {name}: {error}") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{name} has more than {MAX_BYTES >> 20} MiB, more than any image; download and check it")
    try:
        return decode_image(np.frombuffer(data, np.uint8))
    except ValueError as error:
        raise DataError(f"{name} {error}") from error


class WebVideo(NamedTuple):
    """What is at the address of a video."""

    is_file: bool  # whether it is a file of a known length; else it may be a live stream
    copy: Path | None = None  # a downloaded copy, if FFmpeg cannot read the file at its address


def fetch_video(url: str, folder: Path) -> WebVideo:
    """Find out what is at an address, and download a file whose server does not send parts of it.

    FFmpeg jumps in a file to its index, which may be at the end, and needs a server that sends parts for that.
    ``DataError`` if the download fails.
    """
    path = Path(urlsplit(url).path)
    if urlsplit(url).scheme not in ("http", "https") or path.suffix.lower() in PLAYLIST_SUFFIXES:
        return WebVideo(is_file=False)
    try:
        response = open_address(url, {"Range": "bytes=0-"})
    except (OSError, http.client.HTTPException, ValueError):
        return WebVideo(is_file=False)  # FFmpeg tells why
    with response:
        length = response.headers["Content-Length"]
        if length is None or "mpegurl" in response.headers.get_content_type():
            return WebVideo(is_file=False)
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            return WebVideo(is_file=True)
        copy = folder / f"video{path.suffix}"
        try:
            with open(copy, "wb") as file:
                shutil.copyfileobj(response, file)
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"cannot download {without_credentials(url)}: {error}") from error
    if copy.stat().st_size < int(length):
        raise DataError(f"{without_credentials(url)} ends early: {copy.stat().st_size} of {length} bytes arrived")
    return WebVideo(is_file=True, copy=copy)
