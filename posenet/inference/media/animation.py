"""Files of several images: GIF, WebP, PNG, AVIF and TIFF, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator

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
    """The selected images of a file; ``DataError`` if it cannot be read, or an image of it cannot be decoded."""
    image, places = _open_images(source)
    begin_ms = 0.0
    first_selected: int | None = None
    for number, place in enumerate(places):
        try:
            image.seek(place)
            image.load()  # only this reads the time in some formats
            pixels = to_bgr(image)
        except Exception as error:
            text = f"image {number} of {len(places)} of {source.name} cannot be decoded"
            raise DataError(f"{text} ({to_single_line(str(error))}); save it again") from error
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
        raise DataError(f"{source.name} has no image after {selection.start:g} s")


def _open_images(source: Source) -> tuple[Image.Image, list[int]]:
    """The file of a source, and the indices of its images."""
    try:
        data = read_input(str(source.path)) if source.url is None else download_bytes(source.url)
        image = open_with_pillow(io.BytesIO(data))
        places = image_places(image) if image is not None else []
    except DataError:
        raise
    except Exception as error:  # Pillow's plugins raise errors of many classes
        reason = to_single_line(str(error))
        raise DataError(f"{source.name} cannot be read ({reason}); copy it or save it again") from error
    if image is None or not places:
        raise DataError(f"{source.name} is damaged: no image can be decoded; copy it or save it again")
    return image, places


def _duration_ms(image: Image.Image) -> float:
    """How long the current image is shown; pages follow each other at the rate of a video."""
    if image.format == "TIFF":
        return 1000 / DEFAULT_FRAME_RATE
    duration = float(image.info.get("duration") or 0)
    return duration if duration >= SHORTEST_MS else REPLACED_MS
