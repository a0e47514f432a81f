"""The training data set: a record of the store, augmented, as uint8 images, joints and masks."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posenet.data.augment import Augmentation, warp_image, warp_joints, warp_mask
from posenet.data.record import Record
from posenet.data.sampler import Key
from posenet.data.store import Store
from posenet.errors import DataError
from posenet.settings import AugmentConfig

GRACE_SECONDS = 300
"""How long a worker outlives SIGTERM, so that the step under way can end."""


class Plan(NamedTuple):
    """A sample before any pixel is touched."""

    record: Record
    augmentation: Augmentation
    matrix: np.ndarray
    """(2, 3) float64: picture pixels to network-input pixels."""


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
        return Batch(*(t.to(device, non_blocking=True) for t in self[:-1]), self.faults)


class PoseDataset(Dataset[Sample]):
    """Samples of a store, addressed by (epoch, index).

    Args:
        size: (height, width) of the network input.
        framing: "person" gives one sample per main person, "image" one per picture.
        augment: how to augment; None shows every sample plainly.
        seed: together with epoch and index the only source of randomness.
    """

    def __init__(self, store: Store, size: tuple[int, int], framing: str = "person",
                 augment: AugmentConfig | None = None, seed: int = 0) -> None:
        self.store, self.size, self.framing, self.augment, self.seed = store, size, framing, augment, seed

    def __len__(self) -> int:
        return self.store.num_images if self.framing == "image" else len(self.store)

    def __getitem__(self, key: Key) -> Sample:
        """One sample; where it cannot be read the next one, or one twice as far on, and again twice.

        Damage comes in stretches, so that the way out of it leads ever farther. It depends on nothing but the key.

        Raises:
            DataError: none of them can be read.
        """
        epoch, index = key
        faults: list[str] = []
        for offset in (0, *(2 ** k for k in range((len(self) - 1).bit_length()))):
            try:
                return self.read((epoch, (index + offset) % len(self)))._replace(faults=tuple(faults))
            except DataError as error:
                faults.append(str(error))
        raise DataError(f"sample {index} cannot be read, nor can {len(faults) - 1} others in its place: {faults[0]}")

    def read(self, key: Key) -> Sample:
        """Read, decode and warp one sample.

        Raises:
            DataError: the record cannot be read or decoded.
        """
        record, augmentation, matrix = self.plan(key)
        size = self.size[::-1]
        mask_all, mask_miss = record.masks()
        return Sample(
            image=warp_image(record.decode_image(), augmentation, matrix, size),
            joints=warp_joints(record.joints, augmentation, matrix, self.store.skeleton),
            person_mask=warp_mask(mask_all, matrix, size, border=0),
            mask_miss=warp_mask(mask_miss, matrix, size, border=1),
            image_id=record.image_id,
        )

    def plan(self, key: Key) -> Plan:
        """Read a record and draw its augmentation; no pixel is touched yet.

        Raises:
            DataError: the record cannot be read.
        """
        epoch, index = key
        height, width = self.size
        augmentation = Augmentation()
        if self.augment is not None:
            augmentation = Augmentation.sample(np.random.default_rng((self.seed, epoch, index)), self.augment)
        if self.framing == "image":
            record = self.store.image(index)
            return Plan(record, augmentation, augmentation.image_matrix((record.width, record.height), (width, height)))
        record, person = self.store.sample(index)
        x, y, w, h = record.boxes[person].tolist()
        return Plan(record, augmentation, augmentation.matrix((x + w / 2, y + h / 2), h / height, (width, height)))


def collate(samples: list[Sample]) -> Batch:
    """Stack samples, padding joints to the picture with the most people."""
    people = max(len(s.joints) for s in samples)
    joints = np.zeros((len(samples), people, *samples[0].joints.shape[1:]), np.float32)
    for row, sample in zip(joints, samples):
        row[:len(sample.joints)] = sample.joints
    return Batch(
        images=torch.from_numpy(np.stack([s.image for s in samples])),
        joints=torch.from_numpy(joints),
        person_mask=torch.from_numpy(np.stack([s.person_mask for s in samples])),
        mask_miss=torch.from_numpy(np.stack([s.mask_miss for s in samples])),
        image_ids=torch.tensor([s.image_id for s in samples]),
        faults=tuple(fault for s in samples for fault in s.faults),
    )


def make_loader(dataset: PoseDataset, batches: Iterable[list[Key]], workers: int,
                pin_memory: bool = False) -> DataLoader:
    """A loader of ``Batch``, one for each list of keys; its workers live for the whole run."""
    # PyTorch doubts, at length, more workers than cores; they are the user's to choose.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    return DataLoader(dataset, batch_sampler=batches, num_workers=workers, collate_fn=collate, pin_memory=pin_memory,
                      worker_init_fn=_start_worker, persistent_workers=workers > 0,
                      # A loader draws from PyTorch's global generator unless it has its own.
                      generator=torch.Generator())


def close_loader(loader: DataLoader) -> None:
    """End a loader's workers now, rather than when Python ends."""
    if loader._iterator is not None:
        workers = loader._iterator._workers
        loader._iterator._shutdown_workers()
        loader._iterator = None
        for worker in workers:
            # One that another's death has blocked heeds nothing less, and none has anything to lose.
            worker.kill()
            worker.join()


def _start_worker(_: int) -> None:
    # One thread a worker: OpenCV's own pool would fight the other workers for the same cores.
    cv2.setNumThreads(0)
    # Ctrl-C and a scheduler's SIGTERM reach every process, but the main one is to finish its step first: it ends its
    # workers itself. Should it fail to, the alarm does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))
