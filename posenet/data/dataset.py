"""The training data set: records of stores, augmented and warped to the network input; samples and batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from posenet.data.augment import (
    Augmentation,
    largest_reduction,
    matrix_for_reduced_image,
    random_numbers,
    warp_image,
    warp_joints,
    warp_mask,
)
from posenet.data.loader import Batch, stack_joints
from posenet.data.sampler import SampleKey
from posenet.data.store import NO_PERSON, Record, Store, StoreList
from posenet.errors import DataError
from posenet.settings import MAP_STRIDE, AugmentConfig, DataConfig, TrainConfig


class SampleBuffers(NamedTuple):
    """Arrays of a batch that the image and the masks of one sample are written to; see ``Batch``."""

    image: np.ndarray
    person_mask: np.ndarray
    mask_miss: np.ndarray


class PartialSample(NamedTuple):
    """A sample whose masks are already in its buffers, but not its image."""

    record: Record
    augmentation: Augmentation
    matrix: np.ndarray  # (2, 3) float64: maps (x, y, 1) in image pixels to network-input pixels
    joints: np.ndarray  # (P, K, 3) float32: x, y, visibility, in network-input pixels
    faults: tuple[str, ...] = ()  # error messages of the unreadable samples that this one replaces


class PoseDataset(Dataset[Batch]):
    """Samples of a store, or of several, addressed by (epoch, index).

    Index i + k · length is sample i with another augmentation, for any k.

    Args:
        size: (height, width) of the network input.
        framing: "person" for one sample per main person, "image" for one per image. An image without annotations has
            one sample in any case, which shows the whole image.
        augment: ranges and probabilities of the augmentation; None does not augment.
        seed: the random numbers of a sample depend only on the seed, the epoch and the index.
    """

    def __init__(
        self,
        store: Store | StoreList,
        size: tuple[int, int],
        framing: str = DataConfig.framing,
        augment: AugmentConfig | None = None,
        seed: int = TrainConfig.seed,
    ) -> None:
        self.store = store
        self.size = size
        self.framing = framing
        self.augment = augment
        self.seed = seed

    def __len__(self) -> int:
        return self.store.num_images if self.framing == "image" else len(self.store)

    def __getitem__(self, key: SampleKey) -> Batch:
        """Load one sample, as a batch."""
        return self.__getitems__([key])

    def __getitems__(self, keys: list[SampleKey]) -> Batch:
        """Load a batch. PyTorch's loader calls a method of this name if there is one.

        The masks and joints of all samples are read before the first image is decoded, because decoding an image evicts
        all smaller code and data from the processor's caches. An unreadable sample is replaced by another one;
        ``DataError`` if no other can be read either.
        """
        height, width = self.size
        images = torch.empty(len(keys), height, width, 3, dtype=torch.uint8)
        person_mask, mask_miss = torch.empty(2, len(keys), height // MAP_STRIDE, width // MAP_STRIDE, dtype=torch.uint8)
        buffers = [SampleBuffers(*arrays) for arrays in zip(images.numpy(), person_mask.numpy(), mask_miss.numpy())]
        partial_samples: list[PartialSample | DataError] = []
        for key, sample_buffers in zip(keys, buffers):
            try:
                partial_samples.append(self.read_masks_and_joints(key, sample_buffers))
            except DataError as error:
                partial_samples.append(error)

        samples = []
        for key, sample_buffers, partial_sample in zip(keys, buffers, partial_samples):
            try:
                if isinstance(partial_sample, DataError):
                    raise partial_sample
                self.decode_and_warp_image(partial_sample, sample_buffers.image)
                samples.append(partial_sample)
            except DataError as error:
                samples.append(self.substitute_unreadable(key, sample_buffers, error))
        joints = stack_joints([sample.joints for sample in samples])
        return Batch(images, joints, person_mask, mask_miss, *_describe(samples))

    def substitute_unreadable(self, key: SampleKey, buffers: SampleBuffers, error: DataError) -> PartialSample:
        """Load another sample in place of one that raised ``error``; ``DataError`` if none can be read.

        This tries the samples at distances 1, 2, 4, 8 ... after it, because damage often affects many samples in a row.
        The choice depends on the key alone, so it is the same in every run. The ``faults`` of the sample are the
        messages of all errors.
        """
        epoch, index = key
        faults = [str(error)]
        for exponent in range((len(self) - 1).bit_length()):
            other_key = (epoch, (index + 2**exponent) % len(self))
            try:
                sample = self.read_masks_and_joints(other_key, buffers)
                self.decode_and_warp_image(sample, buffers.image)
            except DataError as other_error:
                faults.append(str(other_error))
            else:
                return sample._replace(faults=tuple(faults))
        raise DataError(
            f"sample {index} cannot be read, nor can {len(faults) - 1} others in its place: {faults[0]}"
        ) from error

    def read_masks_and_joints(self, key: SampleKey, buffers: SampleBuffers) -> PartialSample:
        """Read a record, warp its masks into ``buffers`` and warp its joints; ``DataError`` if it is damaged."""
        epoch, index = key
        augmentation = Augmentation()
        if self.augment is not None:
            augmentation = Augmentation.from_random_numbers(random_numbers(self.seed, epoch, index), self.augment)
        record, person_row = self.read_record(index)
        matrix = self.frame(record, person_row, augmentation)
        shape = (record.height, record.width)
        size = self.size[::-1]
        # Outside the image there are no people, and the loss supervises if the image has annotations.
        is_labelled = len(record.joints) > 0
        warp_mask(record.mask_all, shape, matrix, size, border=0, out=buffers.person_mask)
        warp_mask(record.mask_miss, shape, matrix, size, border=int(is_labelled), out=buffers.mask_miss)
        joints = warp_joints(record.joints, augmentation, matrix, self.store.skeleton)
        return PartialSample(record, augmentation, matrix, joints)

    def read_record(self, index: int) -> tuple[Record, int]:
        """Read the record of a sample, and return it with the row of the person to frame, or ``NO_PERSON``."""
        index %= len(self)  # a sample that is repeated in an epoch has several indices
        if self.framing == "image":
            return self.store.read_record(index), NO_PERSON
        return self.store.read_sample(index)

    def frame(self, record: Record, person_row: int, augmentation: Augmentation) -> np.ndarray:
        """The warp that frames a person, or the whole image; see ``Augmentation.matrix``."""
        height, width = self.size
        if person_row == NO_PERSON:
            return augmentation.image_matrix((record.width, record.height), (width, height))
        x, y, box_width, box_height = record.people["box"][person_row].tolist()
        center = (x + box_width / 2, y + box_height / 2)
        return augmentation.matrix(center, box_height / height, (width, height))

    def decode_and_warp_image(self, sample: PartialSample, out: np.ndarray) -> None:
        """Decode the image of a sample and warp it into (H, W, 3) ``out``; ``DataError`` if it is damaged."""
        reduction = largest_reduction(sample.matrix)
        if not sample.record.allows_reduction(reduction):
            reduction = 1
        image = sample.record.decode_image(reduction)
        matrix = matrix_for_reduced_image(sample.matrix, reduction)
        warp_image(image, sample.augmentation, matrix, self.size[::-1], out=out)


def _describe(samples: list[PartialSample]) -> tuple[Tensor, tuple[str, ...], Tensor | None, Tensor | None]:
    """The fields of ``Batch`` from ``image_ids`` on."""
    image_ids = torch.tensor([sample.record.image_id for sample in samples])
    faults = tuple(fault for sample in samples for fault in sample.faults)
    supervisions = [sample.record.supervision for sample in samples if sample.record.supervision is not None]
    if not supervisions:
        return image_ids, faults, None, None
    set_indices = torch.tensor([supervision.set_index for supervision in supervisions], dtype=torch.int16)
    flips = [int(sample.augmentation.flip) for sample in samples]
    channels = [part.channels[flip] for part, flip in zip(supervisions, flips) if part.channels is not None]
    return image_ids, faults, set_indices, torch.from_numpy(np.stack(channels)) if channels else None
