"""The training data set: records of stores, augmented and warped to the network input; samples and batches.

Sizes are (height, width), as in stores; those passed to ``augment`` are (width, height), as in OpenCV.
"""

import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from posenet.data.augment import (
    Augmentation,
    cover_square,
    largest_reduction,
    matrix_for_reduced_image,
    random_generator,
    warp_image,
    warp_joints,
    warp_mask,
)
from posenet.data.store import NO_PERSON, Record, Store
from posenet.data.store_list import StoreList, sample_rows
from posenet.errors import ConfigError, DataError
from posenet.extensions import load_extension
from posenet.messages import to_single_line
from posenet.settings import MAP_STRIDE, AugmentConfig, Config, DataConfig, TrainConfig

PEOPLE_MULTIPLE = 4
"""Batches are padded to a multiple of this number of people: a compiled step has another graph for a single person."""

SampleKey = tuple[int, int]
"""(epoch, index). Together with the seed it determines a sample, augmentation included."""


class Sample(NamedTuple):
    """A training sample as a function of your own receives it: positions are pixels of the network input."""

    image: np.ndarray  # (H, W, 3) BGR uint8
    joints: np.ndarray  # (P, K, 3) float32: x, y and visibility; 0 is not labelled, 1 hidden, 2 visible
    person_mask: np.ndarray  # (H/4, W/4) uint8, 255 on people
    mask_miss: np.ndarray  # (H/4, W/4) uint8, 255 where the loss supervises


Transform = Callable[[Sample, np.random.Generator], Sample]
"""Changes a sample. Draw all that is random from the generator, which depends on seed, epoch and index alone."""


class Batch(NamedTuple):
    """Stacked samples, about 0.8 MB each at 512 x 512. The training step renders the targets from them.

    Samples with fewer than P people are padded with zeros; P is a multiple of ``PEOPLE_MULTIPLE``.
    """

    images: Tensor  # (N, H, W, 3) BGR uint8
    joints: Tensor  # (N, P, K, 3) float32: x, y in network-input pixels, visibility
    person_mask: Tensor  # (N, H/4, W/4) uint8, 255 on people
    mask_miss: Tensor  # (N, H/4, W/4) uint8, 255 where the loss supervises
    image_ids: Tensor  # (N,) int64
    faults: tuple[str, ...] = ()  # error messages of the unreadable samples that were replaced by others
    supervised: Tensor | None = None  # (N, C) uint8, 1 for the channels that each sample supervises; None means all

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device. The copying may still be in progress on return."""
        return Batch._make(
            value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for value in self
        )


class PoseDataset(Dataset[Batch]):
    """Samples of a store, or of several, addressed by (epoch, index).

    Index i + k · length is sample i with another augmentation, for any k.

    Args:
        store: a store, its path, or several.
        size: (height, width) of the network input.
        framing: "person" for one sample per main person, "image" for one per image. An image without annotations has
            one sample in any case, which shows the whole image.
        augment: ranges and probabilities of the augmentation; None does not augment.
        seed: the random numbers of a sample depend only on the seed, the epoch and the index.
        transform: changes every sample after all augmentation. Images and masks keep their shapes and types;
            ``ConfigError`` if they do not.
    """

    def __init__(
        self,
        store: Store | StoreList | str | Path,
        size: tuple[int, int],
        framing: str = DataConfig.framing,
        augment: AugmentConfig | None = None,
        seed: int = TrainConfig.seed,
        transform: Transform | None = None,
    ) -> None:
        self.store = store = Store(store) if isinstance(store, (str, Path)) else store
        self.rows = sample_rows(store, framing)
        self.size = size
        if augment is not None and not store.skeleton.mirror:
            augment = replace(augment, flip_probability=0.0)  # the other random numbers stay the same
        self.augment = augment
        self.seed = seed
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: SampleKey) -> Batch:
        """Load one sample, as a batch."""
        return self.__getitems__([key])

    def __getitems__(self, keys: list[SampleKey]) -> Batch:
        """Load a batch. PyTorch's loader calls a method of this name if there is one.

        An unreadable sample is replaced by another one; ``DataError`` if no other can be read either.
        """
        height, width = self.size
        images = _empty(len(keys), height, width, 3)
        person_mask, mask_miss = _empty(2, len(keys), height // MAP_STRIDE, width // MAP_STRIDE)
        records, people, flips, faults = zip(
            *map(self._load_or_substitute, keys, images.numpy(), person_mask.numpy(), mask_miss.numpy())
        )
        num_people = PEOPLE_MULTIPLE * max(1, math.ceil(max(map(len, people)) / PEOPLE_MULTIPLE))
        joints = torch.zeros(len(keys), num_people, *people[0].shape[1:])
        for row, of_sample in zip(joints.numpy(), people):
            row[: len(of_sample)] = of_sample
        image_ids = torch.tensor([record.image_id for record in records])
        pairs = zip(flips, (record.supervised for record in records))
        channels = [supervised[int(flip)] for flip, supervised in pairs if supervised is not None]
        supervised = torch.from_numpy(np.stack(channels)) if channels else None
        return Batch(images, joints, person_mask, mask_miss, image_ids, tuple(chain(*faults)), supervised)

    def _load_or_substitute(
        self, key: SampleKey, image: np.ndarray, person_mask: np.ndarray, mask_miss: np.ndarray
    ) -> tuple[Record, np.ndarray, bool, list[str]]:
        """Load a sample as ``_load`` does, or another one in its place; the errors of unreadable ones come last.

        This tries the samples at distances 1, 2, 4, 8 ... after it, because damage often affects many samples in a row.
        The choice depends on the key alone, so it is the same in every run. ``DataError`` if none can be read.
        """
        epoch, index = key
        faults: list[str] = []
        for distance in (0, *(2**exponent for exponent in range((len(self) - 1).bit_length()))):
            tried = (epoch, (index + distance) % len(self) if distance else index)
            try:
                return *self._load(tried, image, person_mask, mask_miss), faults
            except DataError as error:
                faults.append(str(error))
        raise DataError(f"sample {index} cannot be read, nor can {len(faults) - 1} others in its place: {faults[0]}")

    def _load(
        self, key: SampleKey, image: np.ndarray, person_mask: np.ndarray, mask_miss: np.ndarray
    ) -> tuple[Record, np.ndarray, bool]:
        """Read, warp and augment a sample, and call ``transform``; ``DataError`` if it is damaged.

        The image and the masks are written to the arrays. Returned are the record, the joints, and whether these are
        mirrored.
        """
        augmentation = Augmentation()
        if self.augment is not None:
            augmentation = Augmentation.draw(self.augment, self.seed, *key)
        record, person_row = self.read_record(key[1])
        matrix = self.warp_matrix(record, person_row, augmentation)
        image_size = (record.width, record.height)
        # Outside the image there are no people, and the loss supervises if the image has annotations.
        warp_mask(record.person_mask, image_size, matrix, border=0, out=person_mask)
        warp_mask(record.mask_miss, image_size, matrix, border=int(record.is_annotated), out=mask_miss)
        joints = warp_joints(record.joints, augmentation, matrix, self.store.skeleton)
        reduction = largest_reduction(matrix)
        if not record.allows_reduction(reduction):
            reduction = 1
        pixels = record.decode_image(reduction)
        warp_image(pixels, augmentation, matrix_for_reduced_image(matrix, reduction), out=image)
        if augmentation.cutout is not None:
            cover_square(image, augmentation.cutout)
        if self.transform is not None:
            joints = self._call_transform(self.transform, key, record, Sample(image, joints, person_mask, mask_miss))
        return record, joints, augmentation.flip

    def read_record(self, index: int) -> tuple[Record, int]:
        """Read the record of a sample, and return it with the row of the person to frame, or ``NO_PERSON``."""
        image, person = self.rows[index % len(self)].tolist()  # a sample that is repeated has several indices
        return self.store.read_record(image), person

    def warp_matrix(self, record: Record, person_row: int, augmentation: Augmentation) -> np.ndarray:
        """The warp that frames a person, or with ``NO_PERSON`` the whole image; see ``Augmentation.matrix``."""
        height, width = self.size
        if person_row == NO_PERSON:
            return augmentation.image_matrix((record.width, record.height), (width, height))
        x, y, box_width, box_height = record.people["box"][person_row].tolist()
        center = (x + box_width / 2, y + box_height / 2)
        return augmentation.matrix(center, box_height / height, (width, height))

    def _call_transform(self, transform: Transform, key: SampleKey, record: Record, sample: Sample) -> np.ndarray:
        """Let the user's function change a sample, write its image and masks to the arrays, and return its joints.

        ``ConfigError`` if it fails, or if arrays of other types or shapes come back; but people may come and go.
        """
        try:
            after = transform(sample, random_generator(self.seed, *key, "transform"))
            joints = np.empty((len(after.joints), *sample.joints.shape[1:]), np.float32)
            for array, new in zip(sample._replace(joints=joints), Sample(*after)):
                if np.shape(new) != array.shape:  # which copying might stretch
                    raise ValueError(f"an array of shape {np.shape(new)}, not {array.shape}")
                np.copyto(array, new, casting="no")
            if not np.isfinite(joints).all():
                raise ValueError("joints that are not finite")
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            cause = to_single_line(f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})")
            text = f"data.transform failed on image {record.image_id} (epoch and sample {key}) with {cause}"
            raise ConfigError(
                f"{text}; correct the function, which returns a Sample like the one that it gets"
            ) from error
        return joints


def training_set(store: Store | StoreList, config: Config) -> PoseDataset:
    """The training samples of a store, as the settings of a run define them.

    ``ConfigError`` if ``data.transform`` names no function.
    """
    name = config.data.transform
    transform = load_extension("data.transform", name) if name else None
    if name and not callable(transform):
        raise ConfigError(f"data.transform={name} is not a function; give module:name")
    return PoseDataset(store, config.train.size, config.data.framing, config.augment, config.train.seed, transform)


def _empty(*shape: int) -> Tensor:
    """An uint8 tensor to write to. That of a data worker is in shared memory, so that it need not be copied there."""
    tensor = torch.empty(shape, dtype=torch.uint8)
    return tensor if get_worker_info() is None else tensor.share_memory_()  # type: ignore[no-untyped-call]
