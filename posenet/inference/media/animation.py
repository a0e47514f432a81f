"""Files of several images: GIF, WebP, PNG, AVIF and TIFF, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

from PIL import Image

from posenet.downloading import download_bytes
from posenet.errors import DataError
from posenet.files import read_input
from posenet.images import image_places, open_with_pillow, to_bgr
from posenet.inference.media.sources import (
    DEFAULT_FRAME_RATE,
    Frame,
    FrameSelection,
    Source,
)
from posenet.messages import to_single_line

SHORTEST_MS = 20
"""Images that state a shorter time, or none, are shown for 100 ms by browsers."""
REPLACED_MS = 100


def read_animation(source: Source, selection: FrameSelection) -> Iterator[Frame]:
    """The selected images of a file; a last frame has an error if an image cannot be decoded.

    Raises:
        DataError: the file cannot be read, or is too large.
    """
    image, places = _open_images(source)
    begin_ms = 0.0
    first_selected: int | None = None
    for number, place in enumerate(places):
        try:
            image.seek(place)
            image.load()  # only this reads the time in some formats
            pixels = to_bgr(image)
        except Exception as error:
            reason = to_single_line(str(error))
            text = f"image {number} of {len(places)} of {source.name} cannot be decoded ({reason}); save it again"
            yield Frame(source, error=DataError(text))
            return
        duration_ms = _duration_ms(image)
        seconds = begin_ms / 1000
        begin_ms += duration_ms
        if seconds >= selection.start + selection.duration:
            return
        if seconds < selection.start:
            continue
        if first_selected is None:
            first_selected = number
        if (number - first_selected) % selection.stride == 0:
            expected = -(-(len(places) - number) // selection.stride)
            rate = 1000 / duration_ms / selection.stride
            yield Frame(source, pixels, number, seconds, rate, expected=expected)
    if first_selected is None:
        yield Frame(source, error=DataError(f"{source.name} has no image after {selection.start:g} s"))


def _open_images(source: Source) -> tuple[Image.Image, list[int]]:
    """The file of a source, and the indices of its images."""
    try:
        image = open_with_pillow(_read(source))
    except ValueError as error:  # it is too large
        raise DataError(f"{source.name} {error}") from error
    try:
        places = image_places(image) if image is not None else []
    except Exception as error:  # Pillow's plugins raise errors of many classes
        raise DataError(_damaged(source)) from error
    if image is None or not places:
        raise DataError(_damaged(source))
    return image, places


def _damaged(source: Source) -> str:
    return f"{source.name} is damaged: no image can be decoded; copy it or save it again"


def _read(source: Source) -> BinaryIO:
    if source.url is not None:
        return io.BytesIO(download_bytes(source.url))
    try:
        return io.BytesIO(read_input(str(source.path)))
    except OSError as error:
        raise DataError(f"cannot read {source.name}: {error.strerror or error}; check the file") from error


def _duration_ms(image: Image.Image) -> float:
    """How long the current image is shown; pages follow each other at the rate of a video."""
    if image.format == "TIFF":
        return 1000 / DEFAULT_FRAME_RATE
    duration = float(image.info.get("duration") or 0)
    return duration if duration >= SHORTEST_MS else REPLACED_MS
