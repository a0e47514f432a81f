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

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image."""
        height, width = self.resized
        interpolation = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_CUBIC
        result = np.full((*self.padded, 3), PADDING, np.uint8)
        result[:height, :width] = cv2.resize(image, (width, height), interpolation=interpolation)
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
