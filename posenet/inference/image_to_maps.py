"""From images to maps: the versions of an image that the network sees, and the average of their maps.

An image has a version for each inference scale, resized and padded (``Letterbox``), and with ``flip`` also mirrored.
The maps of all versions are resampled to the cells of the largest one (``Resampling``), and averaged.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import cv2
import numpy as np

from posenet.inference.networks import MapFunction, TorchNetwork
from posenet.person import Person
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, PADDING, InferenceConfig
from posenet.skeleton import Skeleton

if TYPE_CHECKING:
    import torch

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
    def fit(cls, image_size: tuple[int, int], settings: InferenceConfig, scale: float = 1.0) -> Letterbox:
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

    def apply(self, image: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image, into ``out`` if it is given: an array of the padded size.

        While it is much larger, it is halved to the means of 2 x 2 pixels. The rest is cubic interpolation, or
        averaging over areas where an odd side prevents halving.
        """
        result = np.empty((*self.padded, 3), np.uint8) if out is None else out
        height, width = self.resized
        result[height:] = PADDING
        result[:height, width:] = PADDING
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
    zooms = target.resized[0] / source.resized[0], target.resized[1] / source.resized[1]
    plans = []
    for zoom, padded, wanted in zip(zooms, source.padded, target.decoded_cells):
        ahead = 0 if zoom == 1 else 2  # cubic interpolation between cells depends on two more
        cells = min(padded // MAP_STRIDE, math.ceil(wanted / zoom) + ahead)
        repeated = 0
        # OpenCV copies an image whose size would stay the same, and ignores the factor.
        while int((cells + repeated) * zoom) < max(wanted, cells + repeated + (zoom > 1)):
            repeated += 1
        plans.append((cells, repeated))
    (rows, more_rows), (columns, more_columns) = plans
    return Resampling(zooms, (rows, columns), (more_rows, more_columns), target.decoded_cells)


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


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale.

    The maps of all scales are resampled to the cells of ``letterboxes[0]``.
    """

    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``, largest scale first, without those that the limits of the size make equal."""
    counts: list[int]
    """How many of the scales each of these stands for."""
    inputs: list[np.ndarray]
    """For each of these scales (N, H, W, 3) BGR uint8."""


class PendingMaps(NamedTuple):
    """The averaged maps of N images, which a device may still be computing, and what maps people back."""

    letterboxes: list[Letterbox]
    """Those of the scale whose cells the maps have."""
    wait: Callable[[], list[np.ndarray]]
    """Wait for the device, on any thread, and return (C, h, w) float32 of each image, in its ``decoded_cells``."""


def prepare_inputs(network: MapFunction, images: Sequence[np.ndarray], settings: InferenceConfig) -> InputBatch:
    """Resize and pad (H, W, 3) BGR uint8 images, whose network inputs have the same size."""
    sizes = [(image.shape[0], image.shape[1]) for image in images]
    scales = sorted(settings.scales, reverse=True)
    counts = Counter(tuple(Letterbox.fit(size, settings, scale) for size in sizes) for scale in scales)
    inputs = []
    for letterboxes in counts:
        shape = (len(images), *letterboxes[0].padded, 3)
        if _is_on_device(network):
            import torch

            batch = network.host_tensor(shape, torch.uint8).numpy()  # the device copies it in the background
        else:
            batch = np.empty(shape, np.uint8)
        for letterbox, image, out in zip(letterboxes, images, batch):
            letterbox.apply(image, out)
        inputs.append(batch)
    return InputBatch([list(letterboxes) for letterboxes in counts], list(counts.values()), inputs)


def _is_on_device(network: MapFunction) -> TypeGuard[TorchNetwork]:
    return isinstance(network, TorchNetwork) and network.on_device


def start_network(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, *, flip: bool, all_channels: bool = False
) -> PendingMaps:
    """Start to compute the maps of a batch, averaged over its scales and, if ``flip``, over the mirrored images.

    A device averages the maps itself, and this returns without waiting for it. ``all_channels`` adds the maps that
    nobody is decoded from, person mask and keypoint foreground. ``ValueError`` if the network computes maps of another
    shape: people would be misplaced.
    """
    num_channels = skeleton.num_channels if all_channels else skeleton.num_decoded_channels
    if _is_on_device(network):
        return PendingMaps(batch.letterboxes[0], _start_on_device(network, batch, skeleton, flip, num_channels))
    maps = _average_on_host(network, batch, skeleton, flip, num_channels)
    return PendingMaps(batch.letterboxes[0], lambda: maps)


def _average_on_host(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> list[np.ndarray]:
    """The averages for each image, whatever runs the network."""

    def compute_maps(images: np.ndarray) -> np.ndarray:
        maps = np.asarray(network(images), np.float32)
        _require_shape(maps.shape, images.shape, skeleton)
        return maps

    num_maps = sum(batch.counts) * (2 if flip else 1)
    averages: list[np.ndarray] = []
    for images, count, letterboxes in zip(batch.inputs, batch.counts, batch.letterboxes):
        plans = [plan_resampling(*pair) for pair in zip(letterboxes, batch.letterboxes[0])]
        weighed = [np.empty((num_channels, *plan.cells), np.float32) for plan in plans]
        # The mirrored maps come first: the network may write to the same array again.
        if flip:
            # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
            mirrored_maps = compute_maps(np.stack([cv2.flip(image, 1) for image in images]))
            for maps, out in zip(mirrored_maps, weighed):
                _, rows, columns = out.shape
                for channel, twin in zip(out, skeleton.flip_channels):
                    cv2.flip(maps[twin, :rows, maps.shape[2] - columns :], 1, dst=channel)
        weight = count / num_maps
        for maps, out in zip(compute_maps(images), weighed):
            channels = maps[:num_channels, : out.shape[1], : out.shape[2]]
            if flip:
                for channel, mirrored in zip(channels, out):
                    cv2.addWeighted(mirrored, weight, channel, weight, 0, dst=mirrored)
            else:
                np.multiply(channels, weight, out=out)
        if not averages:  # the largest scale
            averages = weighed
            continue
        for average, maps, plan in zip(averages, weighed, plans):
            for total, cells in zip(average, maps):
                cv2.add(total, resample_map(cells, plan), dst=total)
    return averages


def _start_on_device(
    network: TorchNetwork, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> Callable[[], list[np.ndarray]]:
    """Let the device average, and copy the averages to the host with a single copy; what waits for it."""
    import torch

    sizes = [letterbox.decoded_cells for letterbox in batch.letterboxes[0]]
    rows, columns = (max(sides) for sides in zip(*sizes))
    # Not the inference mode: its tensors may be written within it alone, and copies in the background may end later.
    with torch.no_grad():
        averages = _average_on_device(network, batch, skeleton, flip, num_channels)[:, :, :rows, :columns].contiguous()
        copies = network.host_tensor(averages.shape, averages.dtype)
        copies.copy_(averages, non_blocking=network.copies_in_background)
    copied = torch.Event(network.device, blocking=True) if network.copies_in_background else None
    if copied is not None:
        copied.record(torch.accelerator.current_stream(network.device))

    def wait() -> list[np.ndarray]:
        # This function keeps the batch in memory, whose inputs the device may still be copying.
        if copied is not None:
            copied.synchronize()
        return [maps[:, :rows, :columns].float().numpy() for maps, (rows, columns) in zip(copies, sizes)]

    return wait


def _average_on_device(
    network: TorchNetwork, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> torch.Tensor:
    """(N, C, h, w) averages, correct in the decoded cells of each image.

    They are float32, or in the network's precision if there is only one scale without flip.
    """
    import torch
    from torch.nn import functional as F

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(network.device, non_blocking=network.copies_in_background)

    def compute_maps(images: torch.Tensor) -> torch.Tensor:
        maps = network.compute_maps(images)
        _require_shape(maps.shape, images.shape, skeleton)
        return maps

    num_maps = sum(batch.counts) * (2 if flip else 1)
    if num_maps == 1:
        return compute_maps(to_device(torch.from_numpy(batch.inputs[0])))[:, :num_channels]
    flip_channels = network.host_tensor([num_channels], torch.int64)
    flip_channels.copy_(torch.from_numpy(skeleton.flip_channels[:num_channels]))
    twins = to_device(flip_channels)

    def sum_over_flip(inputs: np.ndarray) -> torch.Tensor:
        images = to_device(torch.from_numpy(inputs))
        # A copy, because the network may write to the same tensor again.
        sums = compute_maps(images)[:, :num_channels].to(torch.float32, copy=True)
        if flip:
            sums += compute_maps(images.flip(2)).index_select(1, twins).flip(3)
        return sums

    total = sum_over_flip(batch.inputs[0]) * batch.counts[0]
    for inputs, letterboxes, count in zip(batch.inputs[1:], batch.letterboxes[1:], batch.counts[1:]):
        sums = sum_over_flip(inputs) * count
        for out, maps, *pair in zip(total, sums, letterboxes, batch.letterboxes[0]):
            plan = plan_resampling(*pair)
            rows, columns = plan.cells
            more_rows, more_columns = plan.repeated
            cells = F.pad(maps[None, :, :rows, :columns], (0, more_columns, 0, more_rows), mode="replicate")
            resampled = F.interpolate(cells, scale_factor=plan.zoom, mode="bicubic")
            rows, columns = plan.decoded_cells
            out[:, :rows, :columns] += resampled[0, :, :rows, :columns]
    return total.div_(num_maps)


def _require_shape(shape: Sequence[int], images_shape: Sequence[int], skeleton: Skeleton) -> None:
    """Raise ``ValueError`` if maps have another shape than those of (N, H, W, 3) images."""
    count, height, width, _ = images_shape
    expected = (count, skeleton.num_channels, height // MAP_STRIDE, width // MAP_STRIDE)
    if tuple(shape) != expected:
        raise ValueError(f"the network must compute maps of shape {expected}, not {tuple(shape)}")
