"""How an image is resized and padded for the network, and how people are mapped back to the image.

This module needs only NumPy and OpenCV.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np

from posenet.inference.person import Person
from posenet.settings import MAP_STRIDE

PADDING = 128
"""Value of the padding in all three colour channels."""


@dataclass(frozen=True)
class Letterbox:
    """Resizes an image, then pads it on the right and below."""

    resized: tuple[int, int]
    """(height, width) of the resized image, in network-input pixels."""
    padded: tuple[int, int]
    """(height, width) of the network input."""

    @property
    def image_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells that show the image; the rest is padding."""
        height, width = self.resized
        return -(-height // MAP_STRIDE), -(-width // MAP_STRIDE)  # rounded up

    def apply(self, image: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image, into ``out`` if it is given: an array of the padded size."""
        result = np.empty((*self.padded, 3), np.uint8) if out is None else out
        height, width = self.resized
        result[height:] = PADDING
        result[:height, width:] = PADDING
        resize_image(image, result[:height, :width])
        return result

    def map_back(self, people: Iterable[Person], image_size: tuple[int, int]) -> list[Person]:
        """Map keypoints from network-input pixels to pixels of an image of (height, width) ``image_size``.

        They are clipped to the image. ``people`` are not changed.
        """
        size = np.array(image_size[::-1], np.float32)  # width, height: the order of x, y
        zoom = size / np.array(self.resized[::-1], np.float32)
        mapped = []
        for person in people:
            keypoints = person.keypoints.copy()
            xy = np.clip((keypoints[:, :2] + 0.5) * zoom - 0.5, 0, size - 1)
            keypoints[:, :2] = np.where(person.found[:, None], xy, 0)
            mapped.append(dataclasses.replace(person, keypoints=keypoints))
        return mapped


def resize_image(image: np.ndarray, out: np.ndarray) -> None:
    """Resize a (H, W, 3) uint8 image to the size of ``out``, and write the result there.

    While the image is at least twice as large as ``out``, it is halved to the means of 2 x 2 pixels. The rest is cubic
    interpolation between four pixels on each axis, which leaves out none up to a factor of 2. An image that cannot be
    halved, because a side is odd, is averaged over areas instead, which takes ten times as long.
    """
    height, width = out.shape[:2]
    source_height, source_width = image.shape[:2]
    while source_height >= 2 * height and source_width >= 2 * width and not (source_height % 2 or source_width % 2):
        source_height //= 2
        source_width //= 2
        image = cv2.resize(image, (source_width, source_height), interpolation=cv2.INTER_AREA)
    is_much_larger = source_height >= 2 * height or source_width >= 2 * width
    interpolation = cv2.INTER_AREA if is_much_larger else cv2.INTER_CUBIC
    cv2.resize(image, (width, height), dst=out, interpolation=interpolation)
