"""From images to maps: resized inputs, and the average of their maps over inference scales and mirrored images.

A network sees an image once for each inference scale, resized and padded (``Letterbox``), and with ``flip`` also
mirrored (multi-scale and flip test-time augmentation). The maps of all scales are resampled to the cells of the largest
one and averaged: on a device by PyTorch, elsewhere by NumPy and OpenCV, which need no PyTorch and are faster on a CPU.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np

from posenet.inference.networks import MapFunction, TorchNetwork
from posenet.person import Person
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, PADDING, InferenceConfig
from posenet.skeleton import Skeleton

CORNER = 0.001
"""Smallest x, in pixels, of a keypoint with y = 0."""
MAX_WIDTH = 3800
"""Upper limit of the width of the network input: it bounds the memory that a panorama takes."""
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

    @classmethod
    def fit(cls, image_size: tuple[int, int], settings: InferenceConfig, scale: float = 1.0) -> "Letterbox":
        """Resize an image of (height, width) ``image_size`` to ``scale`` times the configured height, and pad it.

        It is smaller if the padded image would exceed ``inference.max_height`` or ``MAX_WIDTH``.
        """
        height, width = image_size
        zoom = min(
            settings.height * scale / height,
            settings.max_height // INPUT_MULTIPLE * INPUT_MULTIPLE / height,
            MAX_WIDTH // INPUT_MULTIPLE * INPUT_MULTIPLE / width,
        )
        resized = (max(1, round(height * zoom)), max(1, round(width * zoom)))
        rows, columns = (-(-side // INPUT_MULTIPLE) * INPUT_MULTIPLE for side in resized)  # rounded up
        return cls(resized, (rows, columns))

    @property
    def image_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells that show the image."""
        height, width = self.resized
        return -(-height // MAP_STRIDE), -(-width // MAP_STRIDE)  # rounded up

    @property
    def decoded_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells for the decoder: those of the image, and one more of each if there is one.

        The position of a keypoint in the last cell of the image depends on the next cell.
        """
        rows, columns = self.image_cells
        return min(rows + 1, self.padded[0] // MAP_STRIDE), min(columns + 1, self.padded[1] // MAP_STRIDE)

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image.

        While it is much larger, it is halved to the means of 2 x 2 pixels. The rest is cubic interpolation, or
        averaging over areas where an odd side prevents halving.
        """
        result = np.full((*self.padded, 3), PADDING, np.uint8)
        height, width = self.resized
        rows, columns = image.shape[:2]
        factor = max(rows / height, columns / width)
        while factor > MAX_CUBIC_FACTOR and rows % 2 == 0 and columns % 2 == 0:
            rows, columns, factor = rows // 2, columns // 2, factor / 2
            image = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        interpolation = cv2.INTER_AREA if factor > MAX_CUBIC_FACTOR else cv2.INTER_CUBIC
        cv2.resize(image, (width, height), dst=result[:height, :width], interpolation=interpolation)
        return result

    def map_back(self, people: Iterable[Person], image_size: tuple[int, int]) -> list[Person]:
        """Map keypoints from network-input pixels to pixels of an image of (height, width) ``image_size``.

        They are clipped to the image. In its top left corner, they stay ``CORNER`` away from (0, 0), which means that a
        keypoint was not found.
        """
        size = np.array(image_size[::-1], np.float32)  # width, height: the order of x, y
        zoom = size / np.array(self.resized[::-1], np.float32)

        def map_points(points: np.ndarray, exists: np.ndarray) -> np.ndarray:
            inside = np.clip((points + 0.5) * zoom - 0.5, 0, size - 1)
            inside[(inside == 0).all(axis=1), 0] = CORNER
            return np.where(exists[:, None], inside, 0)

        mapped = []
        for person in people:
            keypoints = person.keypoints.copy()
            keypoints[:, :2] = map_points(keypoints[:, :2], person.found)
            estimates = None if person.estimates is None else map_points(person.estimates, ~person.found)
            mapped.append(dataclasses.replace(person, keypoints=keypoints, estimates=estimates))
        return mapped


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale."""

    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``, largest scale first. The maps of all scales are resampled to its cells."""
    inputs: list[np.ndarray]
    """For each scale (N, H, W, 3) BGR uint8."""


def start_network(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, *, flip: bool, all_channels: bool
) -> Callable[[], list[np.ndarray]]:
    """Start to compute the maps of a batch, averaged over its scales and, if ``flip``, over the mirrored images.

    A device averages the maps itself, and this returns without waiting for it. What waits, on any thread, is returned:
    it returns (C, h, w) float32 maps of each image, in its ``decoded_cells``. ``all_channels`` adds the maps that
    nobody is decoded from, person mask and keypoint foreground. ``ValueError`` if the network computes maps of another
    shape: people would be misplaced.
    """
    num_channels = skeleton.num_channels if all_channels else skeleton.num_decoded_channels
    on_device = network if isinstance(network, TorchNetwork) and network.averages else None
    to_device: Callable[[np.ndarray], Any] = np.asarray if on_device is None else on_device.to_device
    twins = to_device(skeleton.flip_channels[:num_channels])
    weight = 1 / (len(batch.inputs) * (2 if flip else 1))  # of the maps of each pass of the network

    def run(images: Any) -> Any:
        maps: Any
        if on_device is not None:
            maps = on_device.compute_maps(images)
            maps = maps.float() if weight < 1 else maps
        else:  # a function of the user may return a tensor, or other numbers
            maps = np.asarray(network(np.ascontiguousarray(images)), np.float32)
        count, height, width, _ = images.shape
        expected = (count, skeleton.num_channels, height // MAP_STRIDE, width // MAP_STRIDE)
        if tuple(maps.shape) != expected:
            raise ValueError(f"the network must compute maps of shape {expected}, not {tuple(maps.shape)}")
        return maps[:, :num_channels]

    def crop(maps: np.ndarray) -> list[np.ndarray]:
        sizes = [letterbox.decoded_cells for letterbox in batch.letterboxes[0]]
        return [of_image[:, :rows, :columns].copy() for of_image, (rows, columns) in zip(maps, sizes)]

    total: Any = None  # (N, C, h, w), correct in the decoded cells of each image
    for inputs, letterboxes in zip(batch.inputs, batch.letterboxes):
        images = to_device(inputs)
        maps = run(images)
        if weight < 1:  # a copy, because the network may write to the same array again
            maps = maps * weight
        if flip:
            # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
            _add_mirrored(maps, run(_mirror(images)), twins, weight)
        if total is None:  # the largest scale
            total = maps
            continue
        for average, cells, source, target in zip(total, maps, letterboxes, batch.letterboxes[0]):
            _add_resampled(average, cells, source, target)
    if on_device is None:
        cropped = crop(total)
        return lambda: cropped
    wait = on_device.copy_to_host(total)
    return lambda: crop(wait())  # it keeps the inputs in memory, which the device may still be copying


def _mirror(images: Any) -> Any:
    """Mirror (N, H, W, 3) images, an array or a tensor."""
    if isinstance(images, np.ndarray):
        return np.stack([cv2.flip(image, 1) for image in images])
    return images.flip(2)


def _add_mirrored(maps: Any, mirrored: Any, twins: Any, weight: float) -> None:
    """Add (N, C, h, w) maps of mirrored images, times a weight, to maps; ``twins`` are the channels of the mirror."""
    if not isinstance(maps, np.ndarray):
        maps.add_(mirrored[:, twins].flip(3), alpha=weight)
        return
    for of_image, other in zip(maps, mirrored):
        for channel, twin in zip(of_image, twins):
            cv2.scaleAdd(cv2.flip(other[twin], 1), weight, channel, dst=channel)


def _add_resampled(total: Any, cells: Any, source: Letterbox, target: Letterbox) -> None:
    """Add the (C, h', w') maps of an image at one scale to the decoded cells of its (C, h, w) maps at another one.

    They are resampled by cubic convolution, after the last row and column were repeated where cells are missing.
    """
    # Resizing by s maps x to (x + 0.5) s - 0.5, for pixels and for cells. The two scales are padded differently, so s
    # is the ratio of the sizes of the resized images, not of the maps.
    zoom = target.resized[0] / source.resized[0], target.resized[1] / source.resized[1]
    rows, columns = target.decoded_cells
    height, width = _cells_for(rows, zoom[0]), _cells_for(columns, zoom[1])
    total, cells = total[:, :rows, :columns], cells[:, :height, :width]
    below, right = height - cells.shape[1], width - cells.shape[2]
    if not isinstance(cells, np.ndarray):
        from torch.nn import functional as F

        padded = F.pad(cells[None], (0, right, 0, below), mode="replicate")
        total += F.interpolate(padded, scale_factor=zoom, mode="bicubic")[0, :, :rows, :columns]
        return
    for sums, one in zip(total, cells):
        if below or right:
            one = cv2.copyMakeBorder(one, 0, below, 0, right, cv2.BORDER_REPLICATE)
        # A size instead of the factors would change the ratio, because sizes are whole numbers.
        resampled = cv2.resize(one, None, fx=zoom[1], fy=zoom[0], interpolation=cv2.INTER_CUBIC)
        sums += resampled[:rows, :columns]


def _cells_for(num_wanted: int, zoom: float) -> int:
    """How many cells make at least ``num_wanted`` that depend on no others: two more for the cubic interpolation.

    They also become more, if only by one: OpenCV copies a map whose size would stay the same, and ignores the factor.
    """
    return math.ceil(max(num_wanted / zoom + 2, 1 / (zoom - 1) + 1 if zoom > 1 else 0))
