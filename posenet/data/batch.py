"""Samples and batches, the memory that they are written to, and the transfer of a batch from a worker process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from posenet.data.shared_buffers import BufferMessage, received_buffers, worker_buffers
from posenet.settings import MAP_STRIDE

PEOPLE_MULTIPLE = 4
"""Batches are padded to a multiple of this number of people, so that a recorded or compiled step sees few shapes."""


class Sample(NamedTuple):
    """One training example. Coordinates are pixels of the network input, (H, W)."""

    image: np.ndarray
    """(H, W, 3) BGR uint8."""
    joints: np.ndarray
    """(P, K, 3) float32: x, y, visibility of the K keypoints of P people."""
    person_mask: np.ndarray
    """(H/4, W/4) uint8, 255 on people."""
    mask_miss: np.ndarray
    """(H/4, W/4) uint8, 255 where the loss supervises."""
    image_id: int
    faults: tuple[str, ...] = ()
    """Error messages of the unreadable samples that this one replaces."""
    set_index: int | None = None
    """Number of its data set, if there are several."""
    supervised: np.ndarray | None = None
    """(C,) uint8, 1 for the output channels that it supervises; None means all."""


class Batch(NamedTuple):
    """Stacked samples, about 0.8 MB each at 512 x 512. Target maps are rendered from them on the device."""

    images: Tensor
    """(N, H, W, 3) BGR uint8."""
    joints: Tensor
    """(N, P, K, 3) float32. Samples with fewer people are padded with zeros; P is a multiple of ``PEOPLE_MULTIPLE``."""
    person_mask: Tensor
    """(N, H/4, W/4) uint8."""
    mask_miss: Tensor
    """(N, H/4, W/4) uint8."""
    image_ids: Tensor
    """(N,) int64."""
    faults: tuple[str, ...] = ()
    """Error messages of the unreadable samples that were replaced by others."""
    set_indices: Tensor | None = None
    """(N,) int16, the data sets of the samples, if there are several."""
    supervised: Tensor | None = None
    """(N, C) uint8, 1 for the output channels that each sample supervises; None means all."""

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device. The copying may still be in progress on return."""
        return Batch._make(
            value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for value in self
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a batch of a worker process as two messages about its shared buffers; see ``shared_buffers``.

        One buffer contains the images and the masks, the other the joints and the supervised channels. The ids are sent
        as a NumPy array, because every tensor in a message costs the main process half a millisecond. Any other batch
        is pickled by value.
        """
        image_buffer = worker_buffers.find(self.images)
        joint_buffer = worker_buffers.find(self.joints)
        mask_buffers = {worker_buffers.find(self.person_mask), worker_buffers.find(self.mask_miss)}
        if image_buffer is None or joint_buffer is None or mask_buffers != {image_buffer}:
            return Batch, tuple(self)
        return _receive_batch, (
            worker_buffers.message(image_buffer),
            worker_buffers.message(joint_buffer),
            tuple(self.images.shape),
            tuple(self.joints.shape),
            self.image_ids.numpy(),
            self.faults,
            None if self.set_indices is None else self.set_indices.numpy(),
            0 if self.supervised is None else self.supervised.shape[1],
        )


class SampleBuffers(NamedTuple):
    """Arrays that the image and the masks of one sample are written to. The fields are those of ``Sample``."""

    image: np.ndarray
    person_mask: np.ndarray
    mask_miss: np.ndarray


class BatchBuffers(NamedTuple):
    """Tensors for the images and masks of a batch, in one block of memory. The fields are those of ``Batch``."""

    images: Tensor
    person_mask: Tensor
    mask_miss: Tensor

    @classmethod
    def allocate(cls, count: int, height: int, width: int) -> BatchBuffers:
        """Memory for ``count`` samples. In a loader's worker it is valid until a later batch overwrites it."""
        return cls.from_memory(_allocate(count * pixel_bytes(height, width)), count, height, width)

    @classmethod
    def from_memory(cls, memory: Tensor, count: int, height: int, width: int) -> BatchBuffers:
        """Views of (bytes,) uint8 memory: first all images, then all person masks, then all supervision masks."""
        map_height = height // MAP_STRIDE
        map_width = width // MAP_STRIDE
        image_bytes = count * height * width * 3
        mask_bytes = count * map_height * map_width
        return cls(
            images=memory[:image_bytes].view(count, height, width, 3),
            person_mask=memory[image_bytes : image_bytes + mask_bytes].view(count, map_height, map_width),
            mask_miss=memory[image_bytes + mask_bytes :].view(count, map_height, map_width),
        )

    def per_sample(self) -> list[SampleBuffers]:
        """The buffers of every sample of the batch."""
        rows = zip(self.images.numpy(), self.person_mask.numpy(), self.mask_miss.numpy())
        return [SampleBuffers(image, person_mask, mask_miss) for image, person_mask, mask_miss in rows]


def pixel_bytes(height: int, width: int) -> int:
    """Bytes of the image and the two masks of one sample."""
    return height * width * 3 + 2 * (height // MAP_STRIDE) * (width // MAP_STRIDE)


def collate(samples: list[Sample], buffers: BatchBuffers) -> Batch:
    """Make a batch of samples. ``buffers`` already contains their images and masks."""
    most_people = max(len(sample.joints) for sample in samples)
    num_people = PEOPLE_MULTIPLE * max(1, math.ceil(most_people / PEOPLE_MULTIPLE))
    shape = (len(samples), num_people, *samples[0].joints.shape[1:])
    num_channels = 0 if samples[0].supervised is None else len(samples[0].supervised)
    joints, supervised = _split_joint_memory(_allocate(_joint_bytes(shape, num_channels)), shape, num_channels)
    joints.zero_()
    for row, sample in zip(joints.numpy(), samples):
        row[: len(sample.joints)] = sample.joints
    if supervised is not None:
        np.stack([sample.supervised for sample in samples if sample.supervised is not None], out=supervised.numpy())
    set_indices = None
    if samples[0].set_index is not None:
        set_indices = torch.from_numpy(np.array([sample.set_index for sample in samples], np.int16))
    image_ids = torch.from_numpy(np.array([sample.image_id for sample in samples], np.int64))
    faults = tuple(fault for sample in samples for fault in sample.faults)
    masks = (buffers.person_mask, buffers.mask_miss)
    return Batch(buffers.images, joints, *masks, image_ids, faults, set_indices, supervised)


def _joint_bytes(joints_shape: Sequence[int], num_channels: int) -> int:
    """Bytes of float32 joints and of the supervised channels of the same samples."""
    return 4 * math.prod(joints_shape) + joints_shape[0] * num_channels


def _split_joint_memory(memory: Tensor, joints_shape: Sequence[int], num_channels: int) -> tuple[Tensor, Tensor | None]:
    """Views of (bytes,) uint8 memory: first the joints, then (N, C) supervised channels; None if C is 0."""
    joint_bytes = 4 * math.prod(joints_shape)  # float32 has 4 bytes
    joints = memory[:joint_bytes].view(torch.float32).view(*joints_shape)
    supervised = memory[joint_bytes:].view(joints_shape[0], num_channels) if num_channels else None
    return joints, supervised


def _allocate(size: int) -> Tensor:
    """(size,) uint8 of ordinary memory; in a loader's worker, of a buffer that it shares with the main process."""
    worker = get_worker_info()
    if worker is None:
        return torch.empty(size, dtype=torch.uint8)
    return worker_buffers.acquire(size, worker.num_workers)


def _receive_batch(
    pixels: BufferMessage,
    joints: BufferMessage,
    image_shape: tuple[int, int, int, int],
    joints_shape: tuple[int, int, int, int],
    image_ids: np.ndarray,
    faults: tuple[str, ...],
    set_indices: np.ndarray | None,
    num_channels: int,
) -> Batch:
    """Unpickle a batch in the main process: copy it out of the worker's shared buffers."""
    count, height, width, _ = image_shape
    pixel_memory = received_buffers.copy_out(pixels, count * pixel_bytes(height, width))
    buffers = BatchBuffers.from_memory(pixel_memory, count, height, width)
    joint_memory = received_buffers.copy_out(joints, _joint_bytes(joints_shape, num_channels))
    joint_values, supervised = _split_joint_memory(joint_memory, joints_shape, num_channels)
    ids = torch.from_numpy(image_ids)
    sets = None if set_indices is None else torch.from_numpy(set_indices)
    masks = (buffers.person_mask, buffers.mask_miss)
    return Batch(buffers.images, joint_values, *masks, ids, faults, sets, supervised)
