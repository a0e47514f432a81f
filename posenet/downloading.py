"""Read image files at web addresses."""

from __future__ import annotations

import base64
import http.client
import urllib.request
from collections.abc import Mapping
from typing import cast
from urllib.parse import unquote, urlsplit

import numpy as np

from posenet.errors import DataError
from posenet.images import decode_image

TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""
MAX_BYTES = 2**28
"""Size of the largest file that is downloaded as an image."""


def without_credentials(url: str) -> str:
    """An address without a user name and a password, for messages."""
    address = urlsplit(url)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def open_address(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Open an address, which may have a user name and a password, with these request headers.

    Raises:
        OSError, http.client.HTTPException, ValueError: the server cannot be reached or refuses, or it is no address.
    """
    request = urllib.request.Request(without_credentials(url), headers=dict(headers or {}))
    credentials = unquote(urlsplit(url).netloc.rpartition("@")[0])
    if credentials:
        # A server to which the answer redirects must not receive them.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=TIMEOUT))


def download_image(url: str) -> np.ndarray:
    """Read the image at an address (http, https or ftp), which may have a user name and a password.

    Returns:
        (H, W, 3) uint8 BGR, upright.

    Raises:
        DataError: it cannot be downloaded, is too large, or is not an image that OpenCV can decode.
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
