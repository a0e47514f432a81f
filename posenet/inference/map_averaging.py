"""From images to maps: inputs at all inference scales, the network, and the average over the scales and the flip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import cv2
import numpy as np

from posenet.inference.letterbox import Letterbox, Resampling, plan_resampling, resample_map
from posenet.inference.networks import MapFunction, TorchNetwork
from posenet.settings import MAP_STRIDE
from posenet.skeleton import Skeleton

if TYPE_CHECKING:
    import torch


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``, largest scale first, without those that the limits of the size make equal."""
    counts: list[int]
    """How many of the scales each of these stands for."""
    inputs: list[np.ndarray]
    """For each of these scales (N, H, W, 3) BGR uint8."""

    @property
    def map_letterboxes(self) -> list[Letterbox]:
        """Those of the largest scale; the maps of all scales are resampled to its cells."""
        return self.letterboxes[0]


_Resampled = tuple[np.ndarray, Resampling]
"""(C, h, w) maps of a scale, and how they are resampled to the cells of the largest scale."""


class PendingMaps(NamedTuple):
    """The averaged maps of N images, which a device may still be computing, and what maps people back."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[Letterbox]
    """Those of the scale whose cells the maps have."""
    wait: Callable[[], list[np.ndarray]]
    """Wait for the device, on any thread, and return (C, h, w) float32 of each image, in its ``decoded_cells``."""


def prepare_inputs(
    network: MapFunction,
    images: Sequence[np.ndarray],
    scales: Sequence[float],
    letterbox_of: Callable[[tuple[int, int], float], Letterbox],
) -> InputBatch:
    """Resize and pad (H, W, 3) BGR uint8 images; their network inputs must have the same size.

    Args:
        letterbox_of: the letterbox of an image of (height, width) at an inference scale.
    """
    image_sizes = [(image.shape[0], image.shape[1]) for image in images]
    counts = Counter(tuple(letterbox_of(size, scale) for size in image_sizes) for scale in sorted(scales, reverse=True))
    inputs = []
    for letterboxes in counts:
        batch = _new_inputs(network, (len(images), *letterboxes[0].padded, 3))
        for letterbox, image, out in zip(letterboxes, images, batch):
            letterbox.apply(image, out)
        inputs.append(batch)
    return InputBatch(image_sizes, [list(letterboxes) for letterboxes in counts], list(counts.values()), inputs)


def _new_inputs(network: MapFunction, shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialized uint8 array from which the device of the network, if it has one, copies in the background."""
    if not _is_on_device(network):
        return np.empty(shape, np.uint8)
    import torch

    return network.host_tensor(shape, torch.uint8).numpy()


def _is_on_device(network: MapFunction) -> TypeGuard[TorchNetwork]:
    return isinstance(network, TorchNetwork) and network.device.type != "cpu"


def start_network(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, *, flip: bool, all_channels: bool = False
) -> PendingMaps:
    """Start to compute the maps of a batch, averaged over its scales and, if ``flip``, over the mirrored images.

    A device averages the maps itself, and this returns without waiting for it.

    Args:
        all_channels: also the maps that nobody is decoded from, person mask and keypoint foreground.

    Raises:
        ValueError: the network computes maps of another shape: people would be misplaced.
    """
    num_channels = skeleton.num_channels if all_channels else skeleton.num_decoded_channels
    if _is_on_device(network):
        wait = _start_on_device(network, batch, skeleton, flip, num_channels)
        return PendingMaps(batch.image_sizes, batch.map_letterboxes, wait)
    maps = _average_on_host(network, batch, skeleton, flip, num_channels)
    return PendingMaps(batch.image_sizes, batch.map_letterboxes, lambda: maps)


def _average_on_host(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> list[np.ndarray]:
    """The averages for each image, whatever runs the network."""
    num_maps = sum(batch.counts) * (2 if flip else 1)
    plans_of_scales = [
        [plan_resampling(*pair) for pair in zip(letterboxes, batch.map_letterboxes)]
        for letterboxes in batch.letterboxes
    ]

    def weigh_maps(scale: int, others_of_images: Sequence[Sequence[_Resampled]]) -> list[np.ndarray]:
        """The part of a scale in the average of each image, plus the parts of other scales, which are resampled."""
        images, weight = batch.inputs[scale], batch.counts[scale] / num_maps
        totals = [np.empty((num_channels, *plan.cells), np.float32) for plan in plans_of_scales[scale]]
        # The mirrored maps come first: the network may write to the same array again.
        if flip:
            _write_mirrored_maps(network, images, skeleton, totals)
        for maps, total, others in zip(_compute_maps(network, images, skeleton), totals, others_of_images):
            channels = maps[:num_channels, : total.shape[1], : total.shape[2]]
            if not flip:
                np.multiply(channels, weight, out=total)
            # All scales of one channel after another, while it is in the cache.
            for number, out in enumerate(total):
                if flip:
                    cv2.addWeighted(out, weight, channels[number], weight, 0, dst=out)
                for cells, plan in others:
                    cv2.add(out, resample_map(cells[number], plan), dst=out)
        return totals

    nothing: list[list[_Resampled]] = [[] for _ in batch.image_sizes]
    smaller = [list(zip(weigh_maps(scale, nothing), plans_of_scales[scale])) for scale in range(1, len(batch.counts))]
    return weigh_maps(0, list(zip(*smaller)) or nothing)


def _write_mirrored_maps(
    network: MapFunction, images: np.ndarray, skeleton: Skeleton, outputs: Sequence[np.ndarray]
) -> None:
    """Compute the maps of the mirrored images, and write them as those of the images: their first rows and columns."""
    # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
    mirrored = np.empty_like(images)
    for image, out in zip(images, mirrored):
        cv2.flip(image, 1, dst=out)
    for maps, output in zip(_compute_maps(network, mirrored, skeleton), outputs):
        _, rows, columns = output.shape
        for out, twin in zip(output, skeleton.flip_channels):
            cv2.flip(maps[twin, :rows, maps.shape[2] - columns :], 1, dst=out)


def _compute_maps(network: MapFunction, images: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """The maps of images; see ``start_network``."""
    maps = np.asarray(network(images), np.float32)
    _require_shape(maps.shape, images.shape, skeleton)
    return maps


def _start_on_device(
    network: TorchNetwork, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> Callable[[], list[np.ndarray]]:
    """Let the device average, and copy the averages to the host with a single copy; what waits for it."""
    import torch

    rows, columns = (max(sizes) for sizes in zip(*(letterbox.decoded_cells for letterbox in batch.map_letterboxes)))
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
        maps_of_images = []
        for letterbox, maps in zip(batch.map_letterboxes, copies):
            rows, columns = letterbox.decoded_cells
            maps_of_images.append(maps[:, :rows, :columns].float().numpy())
        return maps_of_images

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
        for out, maps, *pair in zip(total, sums, letterboxes, batch.map_letterboxes):
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
