"""The training data set: a record of the store, augmented, as uint8 images, joints and masks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from posenet.data.augmentation import Augmentation, draws
from posenet.data.batch import Batch, Pixels, Sample, collate
from posenet.data.sampler import Key
from posenet.data.store.reader import Store
from posenet.data.store.record import Record
from posenet.data.warping import from_reduced, reduction, warp_image, warp_joints, warp_mask
from posenet.errors import DataError
from posenet.settings import AugmentConfig

Room = tuple[np.ndarray, ...]
"""Where a sample's image and masks are written: a row of ``Pixels``."""


class Plan(NamedTuple):
    """A sample before any pixel is touched."""

    record: Record
    augmentation: Augmentation
    matrix: np.ndarray
    """(2, 3) float64: image pixels to network-input pixels."""


class Draft(NamedTuple):
    """A sample that lacks its image only."""

    plan: Plan
    joints: np.ndarray
    """(P, K, 3) float32: x, y, visibility, in network-input pixels."""


class PoseDataset(Dataset[Sample]):
    """Samples of a store, addressed by (epoch, index).

    Args:
        size: (height, width) of the network input.
        framing: "person" gives one sample per main person, "image" one per image.
        augment: how to augment; None shows every sample plainly.
        seed: together with epoch and index the only source of randomness.
    """

    def __init__(
        self,
        store: Store,
        size: tuple[int, int],
        framing: str = "person",
        augment: AugmentConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.store, self.size, self.framing, self.augment, self.seed = store, size, framing, augment, seed

    def __len__(self) -> int:
        return self.store.num_images if self.framing == "image" else len(self.store)

    def __getitem__(self, key: Key) -> Sample:
        """One sample, in memory of its own."""
        (room,) = Pixels.make(1, *self.size).rows()
        return self.find(key, room, self.attempt(key, room))

    def __getitems__(self, keys: list[Key]) -> Batch:
        """A whole batch; loaders ask for it by this name."""
        pixels = Pixels.make(len(keys), *self.size)
        rows = pixels.rows()
        # All that is small comes first: an image drives its code and data out of the processor's caches.
        drafts = [self.attempt(key, row) for key, row in zip(keys, rows)]
        return collate([self.find(*its) for its in zip(keys, rows, drafts)], pixels)

    def find(self, key: Key, room: Room, draft: Draft | DataError) -> Sample:
        """Finish a sample; where it cannot be read the next one, or one twice as far on, and again twice.

        Damage comes in stretches, so that the way out of it leads ever farther. It depends on nothing but the key.

        Args:
            draft: what ``attempt`` gave for the key.

        Raises:
            DataError: none of them can be read.
        """
        epoch, index = key
        faults: list[str] = []
        for offset in (0, *(2**k for k in range((len(self) - 1).bit_length()))):
            if offset:
                draft = self.attempt((epoch, (index + offset) % len(self)), room)
            try:
                if isinstance(draft, DataError):
                    raise draft
                return self.finish(draft, room)._replace(faults=tuple(faults))
            except DataError as error:
                faults.append(str(error))
        raise DataError(f"sample {index} cannot be read, nor can {len(faults) - 1} others in its place: {faults[0]}")

    def attempt(self, key: Key, room: Room) -> Draft | DataError:
        """``begin`` a sample, or tell why that cannot be."""
        try:
            return self.begin(key, room)
        except DataError as error:
            return error

    def begin(self, key: Key, room: Room) -> Draft:
        """Read one sample, warp its masks into ``room`` and its joints.

        Raises:
            DataError: the record cannot be read, or its masks are damaged.
        """
        plan = self.plan(key)
        record, augmentation, matrix = plan
        for runs, border, cells in zip(record.mask_runs(), (0, 1), room[1:]):
            warp_mask(runs, (record.height, record.width), matrix, self.size[::-1], border, out=cells)
        return Draft(plan, warp_joints(record.joints, augmentation, matrix, self.store.skeleton))

    def finish(self, draft: Draft, room: Room) -> Sample:
        """Decode a draft's image and warp it into ``room``.

        Raises:
            DataError: it cannot be decoded.
        """
        (record, augmentation, matrix), joints = draft
        by = reduction_of(record, matrix)
        warp_image(record.decode_image(by), augmentation, from_reduced(matrix, by), self.size[::-1], room[0])
        return Sample(room[0], joints, *room[1:], record.image_id)

    def plan(self, key: Key) -> Plan:
        """Read a record and draw its augmentation; no pixel is touched yet.

        Raises:
            DataError: the record cannot be read.
        """
        epoch, index = key
        height, width = self.size
        augmentation = Augmentation()
        if self.augment is not None:
            augmentation = Augmentation.sample(draws(self.seed, epoch, index), self.augment)
        if self.framing == "image":
            record = self.store.image(index)
            return Plan(record, augmentation, augmentation.image_matrix((record.width, record.height), (width, height)))
        record, person = self.store.sample(index)
        x, y, w, h = record.boxes[person].tolist()
        return Plan(record, augmentation, augmentation.matrix((x + w / 2, y + h / 2), h / height, (width, height)))


def reduction_of(record: Record, matrix: np.ndarray) -> int:
    """How far an image is reduced when it is decoded; only JPEG can be in less time and exactly."""
    return reduction(matrix) if record.is_jpeg else 1
