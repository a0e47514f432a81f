"""Samples and batches: what the data set makes and the loaders' workers ship."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from posenet.data import shared_buffers as ring
from posenet.settings import MAP_STRIDE


class Sample(NamedTuple):
    """One augmented record, in network-input pixels."""

    image: np.ndarray
    """(H, W, 3) BGR uint8."""
    joints: np.ndarray
    """(P, K, 3) float32: x, y, visibility."""
    person_mask: np.ndarray
    """(H/4, W/4) uint8, 255 where people are."""
    mask_miss: np.ndarray
    """(H/4, W/4) uint8, 255 where the loss supervises."""
    image_id: int
    faults: tuple[str, ...] = ()
    """What was wrong with the samples in whose place this one came."""


class Batch(NamedTuple):
    """Stacked samples: some 0.8 MB each at 512 x 512, rendered to targets on the device."""

    images: Tensor
    """(N, H, W, 3) BGR uint8."""
    joints: Tensor
    """(N, P, K, 3) float32; rows of zeros pad images with fewer people."""
    person_mask: Tensor
    """(N, H/4, W/4) uint8."""
    mask_miss: Tensor
    """(N, H/4, W/4) uint8."""
    image_ids: Tensor
    """(N,) int64."""
    faults: tuple[str, ...] = ()
    """What was wrong with the samples that others took the place of."""

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) if isinstance(t, Tensor) else t for t in self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes images and masks travel as the one piece of memory they are, and a worker's joints as
        another; every tensor that is new to the receiver costs it half a millisecond."""
        storage = self.images.untyped_storage()
        if any(t.untyped_storage().data_ptr() != storage.data_ptr() for t in (self.person_mask, self.mask_miss)):
            return Batch, tuple(self)
        rest = {
            name: value.numpy() if isinstance(value, Tensor) else value
            for name, value in self._asdict().items()
            if name not in Pixels._fields
        }
        joints = ring.send(_flat(self.joints))
        if joints[0] is not None:
            rest["joints"] = (*joints, tuple(self.joints.shape))
        return _unpack, (*ring.send(_flat(self.images)), tuple(self.images.shape[:3]), rest)


class Pixels(NamedTuple):
    """Room for the images and masks of a batch, all in one piece of memory; the fields are those of ``Batch``."""

    images: Tensor
    person_mask: Tensor
    mask_miss: Tensor

    @classmethod
    def view(cls, memory: Tensor, count: int, height: int, width: int) -> Pixels:
        """Cut flat bytes into the room of ``count`` samples."""
        images, *masks = memory.split([count * height * width * 3, *[count * height * width // MAP_STRIDE**2] * 2])
        return cls(
            images.view(count, height, width, 3),
            *(mask.view(count, height // MAP_STRIDE, width // MAP_STRIDE) for mask in masks),
        )

    @classmethod
    def make(cls, count: int, height: int, width: int) -> Pixels:
        """Room in memory; in a loader's worker it is good until a later batch overwrites it."""
        return cls.view(_room(count * pixel_bytes(height, width)), count, height, width)

    def rows(self) -> list[tuple[np.ndarray, ...]]:
        """Every sample's image and masks, as arrays to write to."""
        return list(zip(*(part.numpy() for part in self)))


def pixel_bytes(height: int, width: int) -> int:
    """Bytes of one sample's image and masks."""
    return height * width * 3 + 2 * (height * width // MAP_STRIDE**2)


def _room(size: int) -> Tensor:
    """(size,) uint8; in a loader's worker memory that the main process shares and a later batch overwrites."""
    worker = get_worker_info()
    return ring.next_piece(size, worker.num_workers) if worker else torch.empty(size, dtype=torch.uint8)


def _flat(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _unpack(
    address: ring.Address | None, memory: Tensor | None, shape: tuple[int, int, int], rest: dict[str, Any]
) -> Batch:
    count, height, width = shape
    memory = ring.receive(address, memory, count * pixel_bytes(height, width))
    if isinstance(rest["joints"], tuple):
        *sent, joints = rest["joints"]
        rest["joints"] = ring.receive(*sent, 4 * math.prod(joints)).view(torch.float32).view(joints)
    tensors = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in rest.items()
    }
    return Batch(**Pixels.view(memory, *shape)._asdict(), **tensors)


def collate(samples: list[Sample], pixels: Pixels) -> Batch:
    """A batch of samples whose images and masks are ``pixels``; joints are padded to the most people of any."""
    shape = len(samples), max(len(s.joints) for s in samples), *samples[0].joints.shape[1:]
    joints = _room(4 * math.prod(shape)).view(torch.float32).view(shape).zero_()
    for row, sample in zip(joints.numpy(), samples):
        row[: len(sample.joints)] = sample.joints
    return Batch(
        **pixels._asdict(),
        joints=joints,
        image_ids=torch.from_numpy(np.array([s.image_id for s in samples], np.int64)),
        faults=tuple(fault for s in samples for fault in s.faults),
    )
