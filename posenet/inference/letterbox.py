"""How an image is resized and padded for the network, and how maps and people are mapped back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from posenet.person import Person
from posenet.settings import MAP_STRIDE

PADDING = 128
"""Value of the padding in all three colour channels."""
MAX_CUBIC_FACTOR = 1.75
"""An image that is more times as large as its network input is halved first. Cubic interpolation alone would give some
of its pixels almost no weight."""


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

    @property
    def decoded_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells for the decoder: those of the image, and one more of each if there is one.

        The position of a keypoint in the last cell of the image depends on the next cell.
        """
        rows, columns = self.image_cells
        return min(rows + 1, self.padded[0] // MAP_STRIDE), min(columns + 1, self.padded[1] // MAP_STRIDE)

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

        def map_points(points: np.ndarray, exists: np.ndarray) -> np.ndarray:
            return np.where(exists[:, None], np.clip((points + 0.5) * zoom - 0.5, 0, size - 1), 0)

        mapped = []
        for person in people:
            keypoints = person.keypoints.copy()
            keypoints[:, :2] = map_points(keypoints[:, :2], person.found)
            estimates = None if person.estimates is None else map_points(person.estimates, ~person.found)
            mapped.append(dataclasses.replace(person, keypoints=keypoints, estimates=estimates))
        return mapped


def resize_image(image: np.ndarray, out: np.ndarray) -> None:
    """Resize a (H, W, 3) uint8 image to the size of ``out``, (h, w, 3) uint8, and write the result there.

    While the image is more than ``MAX_CUBIC_FACTOR`` times as large, it is halved to the means of 2 x 2 pixels. The
    rest is cubic interpolation, or averaging over areas where an odd side prevents halving.
    """
    height, width = out.shape[:2]
    source_height, source_width = image.shape[:2]
    factor = max(source_height / height, source_width / width)
    while factor > MAX_CUBIC_FACTOR and source_height % 2 == 0 and source_width % 2 == 0:
        source_height //= 2
        source_width //= 2
        factor /= 2
        image = cv2.resize(image, (source_width, source_height), interpolation=cv2.INTER_AREA)
    interpolation = cv2.INTER_AREA if factor > MAX_CUBIC_FACTOR else cv2.INTER_CUBIC
    cv2.resize(image, (width, height), dst=out, interpolation=interpolation)


def resample_maps(maps: np.ndarray, letterboxes: Sequence[Letterbox], target: Sequence[Letterbox]) -> np.ndarray:
    """Resample (N, C, h, w) maps of one inference scale to the cells of another, (N, C, h', w'), by cubic convolution.

    Resizing by s maps x to (x + 0.5) s - 0.5, for pixels and for cells. The two scales are padded differently, so s is
    the ratio of the sizes of the resized images, not of the maps.

    Args:
        letterboxes: how the images were resized for ``maps``.
        target: how for the result; if it is ``letterboxes`` itself, the maps are returned unchanged.
    """
    if letterboxes is target:
        return maps
    resampled = []
    for image_maps, source, other in zip(maps, letterboxes, target):
        rows, columns = (
            _cubic_weights(size, side // MAP_STRIDE, old / new)
            for size, side, old, new in zip(image_maps.shape[1:], other.padded, source.resized, other.resized)
        )
        resampled.append(rows @ image_maps @ columns.T)
    return np.stack(resampled)


def _cubic_weights(size: int, new_size: int, step: float) -> np.ndarray:
    """(new_size, size) float32 weights of cubic convolution with a = -0.75, as in OpenCV; cells repeat at the border.

    ``step`` is the distance of two new cells, in old cells. Keys: "Cubic Convolution Interpolation for Digital Image
    Processing", IEEE Trans. ASSP 1981.
    """
    a = -0.75
    position = (np.arange(new_size) + 0.5) * step - 0.5
    weights = np.zeros((new_size, size), np.float32)
    for offset in (-1, 0, 1, 2):
        cell = np.floor(position).astype(int) + offset
        d = np.abs(position - cell)
        near = ((a + 2) * d - (a + 3)) * d**2 + 1
        far = a * (((d - 5) * d + 8) * d - 4)
        np.add.at(weights, (np.arange(new_size), cell.clip(0, size - 1)), np.where(d <= 1, near, far))
    return weights
