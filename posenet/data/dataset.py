"""The training data set: records of a store, augmented and warped to the network input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset

from posenet.data.augmentation import Augmentation, random_numbers
from posenet.data.batch import Batch, BatchBuffers, Sample, SampleBuffers, collate
from posenet.data.sampler import SampleKey
from posenet.data.store.record import Record
from posenet.data.store.record_store import RecordStore
from posenet.data.store.schema import NO_PERSON
from posenet.data.warping import largest_reduction, matrix_for_reduced_image, warp_image, warp_joints, warp_mask
from posenet.errors import DataError
from posenet.settings import AugmentConfig, DataConfig, TrainConfig


class FramedRecord(NamedTuple):
    """A record and how it is augmented and warped to the network input."""

    record: Record
    augmentation: Augmentation
    matrix: np.ndarray
    """(2, 3) float64: maps (x, y, 1) in image pixels to network-input pixels."""

    @property
    def decode_reduction(self) -> int:
        """The reduction at which to decode the image."""
        reduction = largest_reduction(self.matrix)
        return reduction if self.record.allows_reduction(reduction) else 1


class PartialSample(NamedTuple):
    """A sample without its image. Its masks are already in the buffers."""

    framed: FramedRecord
    joints: np.ndarray
    """(P, K, 3) float32: x, y, visibility, in network-input pixels."""


class PoseDataset(Dataset[Sample]):
    """Samples of a store, addressed by (epoch, index).

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
        store: RecordStore,
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

    def __getitem__(self, key: SampleKey) -> Sample:
        """Load one sample. An unreadable one is replaced by another; see ``substitute_unreadable``."""
        (buffers,) = BatchBuffers.allocate(1, *self.size).per_sample()
        try:
            return self.load_sample(key, buffers)
        except DataError as error:
            return self.substitute_unreadable(key, buffers, error)

    def __getitems__(self, keys: list[SampleKey]) -> Batch:
        """Load a whole batch. PyTorch's loader calls a method of this name if there is one.

        The masks and joints of all samples are read before the first image is decoded, because decoding an image evicts
        all smaller code and data from the processor's caches.
        """
        batch_buffers = BatchBuffers.allocate(len(keys), *self.size)
        sample_buffers = batch_buffers.per_sample()
        partial_samples: list[PartialSample | DataError] = []
        for key, buffers in zip(keys, sample_buffers):
            try:
                partial_samples.append(self.read_masks_and_joints(key, buffers))
            except DataError as error:
                partial_samples.append(error)

        samples = []
        for key, buffers, partial_sample in zip(keys, sample_buffers, partial_samples):
            try:
                if isinstance(partial_sample, DataError):
                    raise partial_sample
                samples.append(self.decode_and_warp_image(partial_sample, buffers))
            except DataError as error:
                samples.append(self.substitute_unreadable(key, buffers, error))
        return collate(samples, batch_buffers)

    def load_sample(self, key: SampleKey, buffers: SampleBuffers) -> Sample:
        """Load one sample into ``buffers``; ``DataError`` if it cannot be read."""
        return self.decode_and_warp_image(self.read_masks_and_joints(key, buffers), buffers)

    def substitute_unreadable(self, key: SampleKey, buffers: SampleBuffers, error: DataError) -> Sample:
        """Load another sample in place of one that raised ``error``.

        This tries the samples at distances 1, 2, 4, 8 ... after it, because damage often affects many samples in a row.
        The choice depends on the key alone, so it is the same in every run.

        Returns:
            The first readable one; its ``faults`` are the messages of all errors so far.

        Raises:
            DataError: none of them can be read.
        """
        epoch, index = key
        faults = [str(error)]
        for exponent in range((len(self) - 1).bit_length()):
            other_key = (epoch, (index + 2**exponent) % len(self))
            try:
                sample = self.load_sample(other_key, buffers)
            except DataError as other_error:
                faults.append(str(other_error))
            else:
                return sample._replace(faults=tuple(faults))
        raise DataError(
            f"sample {index} cannot be read, nor can {len(faults) - 1} others in its place: {faults[0]}"
        ) from error

    def read_masks_and_joints(self, key: SampleKey, buffers: SampleBuffers) -> PartialSample:
        """Read a record, warp its masks into ``buffers`` and warp its joints; ``DataError`` if it is damaged."""
        framed = self.frame_record(key)
        self.warp_masks(framed, buffers)
        joints = warp_joints(framed.record.joints, framed.augmentation, framed.matrix, self.store.skeleton)
        return PartialSample(framed, joints)

    def decode_and_warp_image(self, partial_sample: PartialSample, buffers: SampleBuffers) -> Sample:
        """Decode the image of a partial sample and warp it into ``buffers``; ``DataError`` if it is damaged."""
        framed, joints = partial_sample
        reduction = framed.decode_reduction
        image = framed.record.decode_image(reduction)
        matrix = matrix_for_reduced_image(framed.matrix, reduction)
        warp_image(image, framed.augmentation, matrix, self.size[::-1], out=buffers.image)
        sample = Sample(buffers.image, joints, buffers.person_mask, buffers.mask_miss, framed.record.image_id)
        supervision = framed.record.supervision
        if supervision is None:
            return sample
        channels = supervision.channels
        supervised = None if channels is None else channels[int(framed.augmentation.flip)]
        return sample._replace(set_index=supervision.set_index, supervised=supervised)

    def frame_record(self, key: SampleKey) -> FramedRecord:
        """Read the record of a sample and compute its augmentation and its warp; decode no image and no mask."""
        epoch, index = key
        height, width = self.size
        augmentation = Augmentation()
        if self.augment is not None:
            augmentation = Augmentation.from_random_numbers(random_numbers(self.seed, epoch, index), self.augment)
        index %= len(self)  # a sample that is repeated in an epoch has several indices
        person_row = NO_PERSON
        if self.framing == "image":
            record = self.store.read_record(index)
        else:
            record, person_row = self.store.read_sample(index)
        if person_row == NO_PERSON:
            matrix = augmentation.image_matrix((record.width, record.height), (width, height))
        else:
            x, y, box_width, box_height = record.boxes[person_row].tolist()
            center = (x + box_width / 2, y + box_height / 2)
            matrix = augmentation.matrix(center, box_height / height, (width, height))
        return FramedRecord(record, augmentation, matrix)

    def warp_masks(self, framed: FramedRecord, buffers: SampleBuffers) -> None:
        """Warp the masks of a record into ``buffers``; ``DataError`` if they are damaged."""
        record, _, matrix = framed
        people_runs, supervised_runs = record.mask_runs()
        image_shape = (record.height, record.width)
        size = self.size[::-1]
        # Outside the image there are no people, and the loss supervises if the image has annotations.
        is_labelled = len(record.joints) > 0
        warp_mask(people_runs, image_shape, matrix, size, border=0, out=buffers.person_mask)
        warp_mask(supervised_runs, image_shape, matrix, size, border=int(is_labelled), out=buffers.mask_miss)
