"""The EXIF orientation of image files, and the frame in which an image is annotated.

A camera stores the pixels as its sensor reads them, and notes in the EXIF data how viewers must turn them. So an image
has two frames: the *stored* frame of the pixels in the file, and the *displayed* frame of the image that viewers show.
Most labelling tools annotate in the displayed frame. ``find_annotated_frame`` decides which frame the annotations of an
image use. Building, linting, evaluation and validation all call it, so that they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.images.headers import declared_size, exif_orientation
from posenet.messages import truncate_for_message
from posenet.settings import ExifFrame

FrameReason = Literal["no tag", "size", "setting"]
"""What decides the frame: there is only one, the annotated size fits only one, or the setting chooses one."""


class AnnotatedFrame(NamedTuple):
    """The frame in which one image is annotated."""

    orientation: int
    """The EXIF orientation, 1-8, by which to turn the stored pixels; 1 for the stored frame."""
    reason: FrameReason

    def __str__(self) -> str:
        frame = "stored" if self.orientation == 1 else "displayed"
        return f"{frame} frame by {self.reason}"


def find_annotated_frame(data: np.ndarray | bytes, height: int, width: int, exif_frame: ExifFrame) -> AnnotatedFrame:
    """Decide in which frame an image is annotated.

    Orientations 5 to 8 swap height and width. If the image is not square, the annotated size is then that of one frame
    only, and decides. For orientations 2 to 4, square images and other sizes, ``exif_frame`` decides.

    Args:
        data: the bytes of the image file.
        height, width: the size in the annotation file.

    Raises:
        ConfigError: ``exif_frame`` is unknown.
    """
    if exif_frame not in get_args(ExifFrame):
        raise ConfigError(f"exif_frame {truncate_for_message(exif_frame)} is unknown; use displayed or stored")
    orientation = exif_orientation(data)
    if orientation == 1:
        return AnnotatedFrame(1, "no tag")
    stored_size = declared_size(data)
    if stored_size is not None:
        displayed_size = oriented_size(*stored_size, orientation)
        if stored_size != displayed_size and (height, width) in (stored_size, displayed_size):
            return AnnotatedFrame(1 if (height, width) == stored_size else orientation, "size")
    return AnnotatedFrame(1 if exif_frame == "stored" else orientation, "setting")


def count_frames(frames: Iterable[AnnotatedFrame]) -> dict[str, int]:
    """Count the decisions for images with an orientation: ``{"displayed frame by size": 2}``; empty without any."""
    counts = Counter(str(frame) for frame in frames if frame.reason != "no tag")
    return dict(sorted(counts.items()))


def oriented_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    """(height, width) of an image after its stored pixels are turned by an EXIF orientation, 1-8."""
    return (width, height) if orientation >= 5 else (height, width)


def apply_orientation(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn the stored pixels (H, W, 3) of an image by an EXIF orientation, 1-8, as a viewer does.

    Orientations 5 to 8 swap rows and columns. Then 2, 3, 6 and 7 mirror left and right; 3, 4, 7 and 8 top and bottom.
    """
    if orientation >= 5:
        image = cv2.transpose(image)
    mirrored = orientation in (2, 3, 6, 7)
    upside_down = orientation in (3, 4, 7, 8)
    if mirrored and upside_down:
        return cv2.flip(image, -1)
    if mirrored:
        return cv2.flip(image, 1)
    return cv2.flip(image, 0) if upside_down else image
