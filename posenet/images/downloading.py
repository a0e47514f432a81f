"""Read image files at web addresses."""

from __future__ import annotations

import http.client
import urllib.request

import numpy as np

from posenet.errors import DataError
from posenet.images.decoding import decode_image

TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as lost."""


def download_image(url: str) -> np.ndarray:
    """Read the image at an address (http, https or ftp).

    Returns:
        (H, W, 3) uint8 BGR, upright.

    Raises:
        DataError: it cannot be downloaded, or is not an image that OpenCV can decode.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            data = response.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"cannot read {url}: {error}") from error
    try:
        return decode_image(np.frombuffer(data, np.uint8))
    except ValueError as error:
        raise DataError(f"{url} {error}") from error
