"""How an image is resized and padded for the network, and how maps and people are mapped back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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


class Resampling(NamedTuple):
    """How the maps of one inference scale are resampled to the decoded cells of a larger one.

    Resizing by s maps x to (x + 0.5) s - 0.5, for pixels and for cells. The two scales are padded differently, so s is
    the ratio of the sizes of the resized images, not of the maps. All fields are for rows and columns.
    """

    zoom: tuple[float, float]
    """New cells per cell."""
    cells: tuple[int, int]
    """How many cells, counted from the first, the decoded cells depend on."""
    repeated: tuple[int, int]
    """How often the last cell is repeated, so that there are enough of them."""
    decoded_cells: tuple[int, int]
    """Those of the larger scale."""


def plan_resampling(source: Letterbox, target: Letterbox) -> Resampling:
    """Resample the maps of images resized as ``source`` says to ``target``, which is at least as large."""
    zoom = target.resized[0] / source.resized[0], target.resized[1] / source.resized[1]
    cells, repeated = zip(
        *(
            _plan_axis(padded // MAP_STRIDE, factor, wanted)
            for padded, factor, wanted in zip(source.padded, zoom, target.decoded_cells)
        )
    )
    return Resampling(zoom, cells, repeated, target.decoded_cells)


def _plan_axis(available: int, zoom: float, wanted: int) -> tuple[int, int]:
    """``cells`` and ``repeated`` for the rows or the columns."""
    ahead = 0 if zoom == 1 else 2  # cubic interpolation between cells depends on two more
    cells = min(available, math.ceil(wanted / zoom) + ahead)
    repeated = 0
    # OpenCV copies an image whose size would stay the same, and ignores the factor.
    while int((cells + repeated) * zoom) < max(wanted, cells + repeated + (zoom > 1)):
        repeated += 1
    return cells, repeated


def resample_map(cells: np.ndarray, resampling: Resampling) -> np.ndarray:
    """Resample (h, w) float32 ``cells`` of a map by cubic convolution, to (h', w') ``decoded_cells``."""
    if any(resampling.repeated):
        rows, columns = resampling.repeated
        cells = cv2.copyMakeBorder(cells, 0, rows, 0, columns, cv2.BORDER_REPLICATE)
    zoom_y, zoom_x = resampling.zoom
    # A size instead of the factors would change the ratio, because sizes are whole numbers.
    resampled = cv2.resize(cells, None, fx=zoom_x, fy=zoom_y, interpolation=cv2.INTER_CUBIC)
    rows, columns = resampling.decoded_cells
    return resampled[:rows, :columns]
