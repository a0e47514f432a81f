"""How an image lies in the network's input, and the way back; needs NumPy and OpenCV only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np

from posenet.inference.person import Person
from posenet.settings import MAP_STRIDE

PADDING = 128


@dataclass(frozen=True)
class Letterbox:
    """How an image goes into the network: resized to ``size``, padded right and below to ``canvas``.

    Both are (height, width) in network-input pixels.
    """

    size: tuple[int, int]
    canvas: tuple[int, int]

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the maps that show the image; the rest shows padding."""
        rows, columns = (-(-side // MAP_STRIDE) for side in self.size)
        return rows, columns

    def place(self, image: np.ndarray) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image."""
        canvas = np.full((*self.canvas, 3), PADDING, np.uint8)
        rows, columns = self.size
        shrinks = rows < image.shape[0]
        canvas[:rows, :columns] = cv2.resize(
            image, (columns, rows), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        )
        return canvas

    def back(self, people: Iterable[Person], shape: tuple[int, int]) -> None:
        """Move people from network-input pixels into those of the image, whose (height, width) is ``shape``."""
        sides = np.array(shape[::-1], np.float32)
        zoom = sides / np.array(self.size[::-1], np.float32)
        for person in people:
            xy = (person.keypoints[:, :2] + 0.5) * zoom - 0.5
            person.keypoints[:, :2] = np.where(person.found[:, None], np.clip(xy, 0, sides - 1), 0)
