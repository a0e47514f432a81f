"""The data sets of a run: one or several stores that are read as one, and the samples of an epoch."""

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.data.store import NO_PERSON, Record, Store, make_image_keys, missing_store
from posenet.errors import DataError
from posenet.files import read_input
from posenet.settings import DataConfig, DataSetConfig, DataSets
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import KeypointMapping


class SampleCounts(NamedTuple):
    """The number of samples of a data set, and how many of them an epoch draws."""

    size: int
    per_epoch: int


class DataSet(NamedTuple):
    """One of the stores that are read as one."""

    store: Store
    name: str
    weight: float = 1.0  # how often an epoch draws each of its samples, on average
    mapping: KeypointMapping | None = None  # from the store's skeleton to the network's; None if they are the same
    is_plain_path: bool = False  # not a table of the setting


class StoreList(AbstractContextManager["StoreList"]):
    """One or several stores read as one: the records of the first, then those of the second, and so on.

    If one does not supervise all output channels, every record has the channels that its set supervises.

    Attributes:
        sets: the data sets.
        skeleton: that of the network.
        fingerprint: that of the only store, or a SHA-256 of those of all, in hexadecimal.
        image_ids, image_keys, samples: of all stores; see ``Store``. The rows of images count through all stores.
        num_images, num_unlabelled: number of all images, and of those without annotations.
    """

    def __init__(self, sets: Sequence[DataSet], skeleton: Skeleton) -> None:
        self.sets = list(sets)
        self.skeleton = skeleton
        stores = [data_set.store for data_set in sets]
        self.fingerprint = stores[0].fingerprint
        if len(stores) > 1:
            self.fingerprint = hashlib.sha256("".join(store.fingerprint for store in stores).encode()).hexdigest()
        self.image_ids = np.concatenate([store.image_ids for store in stores])
        self.image_keys = np.concatenate([store.image_keys for store in stores])
        self.num_images = len(self.image_ids)
        self._first_images = [0, *accumulate(store.num_images for store in stores[:-1])]
        self.samples = np.concatenate([store.samples + (row, 0) for store, row in zip(stores, self._first_images)])
        self.num_unlabelled = int((self.samples[:, 1] == NO_PERSON).sum())
        masks = np.ones((len(sets), skeleton.num_channels), np.uint8)
        for row, data_set in enumerate(sets):
            if data_set.mapping is not None:
                masks[row] = data_set.mapping.supervised_channels()
        self._pairs = np.stack([masks, masks[:, skeleton.flip_channels]], axis=1)  # (sets, 2, C), as in ``Record``
        self._supervises_all = bool(masks.all())

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def read_record(self, index: int) -> Record:
        """As ``Store.read_record``, with the joints of the network's skeleton."""
        number = bisect_right(self._first_images, index) - 1
        store, mapping = self.sets[number].store, self.sets[number].mapping
        record = store.read_record(index - self._first_images[number])
        joints = record.joints if mapping is None else mapping.map_joints(record.joints)
        return record._replace(joints=joints, supervised=None if self._supervises_all else self._pairs[number])

    def sample_counts(self, framing: str, background: float = DataConfig.background) -> list[SampleCounts]:
        """The number of samples of every set, and how many of them an epoch draws: round(weight · size), at least 1.

        Background images of all sets come last, as another set, of which the epoch draws the share ``background``.
        """
        counts = []
        for data_set in self.sets:
            size = len(sample_rows(data_set.store, framing)) - count_background(data_set.store)
            counts.append(SampleCounts(size, max(1, round(data_set.weight * size)) if size else 0))
        if num_background := count_background(self):
            num_others = sum(per_epoch for _, per_epoch in counts)
            counts.append(SampleCounts(num_background, round(num_others * background / (1 - background))))
        return counts

    def never_supervised(self) -> list[str]:
        """The names of the network's keypoints and body parts that no set supervises."""
        supervised = self._pairs[:, 0].max(axis=0).tolist()  # (C,)
        names = ["-".join(part) for part in self.skeleton.parts] + list(self.skeleton.keypoints)
        return [name for name, is_supervised in zip(names, supervised) if not is_supervised]

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for data_set in self.sets:
            data_set.store.close()


def sample_rows(store: Store | StoreList, framing: str) -> np.ndarray:
    """(N + B, 2) int64: for each sample of an epoch the row of the image, and of the person in it or ``NO_PERSON``.

    First N samples: one for every main person, or with the framing "image" one for every image that has any; then the B
    background images.
    """
    with_sample = np.unique(store.samples[:, 0])
    whole = np.setdiff1d(np.arange(store.num_images), with_sample, assume_unique=True)
    samples = store.samples
    if framing == "image":
        whole, samples = np.concatenate([with_sample, whole]), samples[:0]
    return np.concatenate([samples, np.stack([whole, np.full_like(whole, NO_PERSON)], axis=1)])


def count_background(store: Store | StoreList) -> int:
    """Number of background images."""
    return store.num_images - len(np.unique(store.samples[:, 0]))


def require_store_files(setting: DataSets) -> None:
    """Raise ``DataError`` if a file of ``data.train`` or ``data.val`` does not exist. This opens none."""
    for item in [setting] if isinstance(setting, str) else setting:
        for path in [item] if isinstance(item, str) else item.paths:
            if path and not Path(path).exists():
                raise missing_store(path)


def open_data_sets(setting: DataSets, skeleton: Skeleton | None) -> StoreList:
    """Open ``data.train`` or ``data.val`` for the skeleton of a network; None takes that of the first store.

    Stores with another skeleton are mapped to it.

    Raises:
        DataError: a store cannot be used, has no keypoint of the network, or is given twice; or two stores that are
            given by their paths alone contain the same image.
    """
    sets: list[DataSet] = []
    for item in [setting] if isinstance(setting, str) else setting:
        table = DataSetConfig(item) if isinstance(item, str) else item
        for path in table.paths:
            store = Store(path)
            own = store.skeleton
            skeleton = skeleton or own
            is_same = (own.keypoints, own.derived) == (skeleton.keypoints, skeleton.derived)
            mapping = None if is_same else KeypointMapping(own, skeleton)
            sets.append(DataSet(store, table.label, table.weight, mapping, is_plain_path=table is not item))
    assert skeleton is not None  # there is at least one store
    for number, (store, name, _, mapping, is_plain_path) in enumerate(sets):
        if mapping is not None and not mapping.has_common_keypoints:
            raise DataError(
                f"data set {name} shares no keypoint with model.skeleton: it has {', '.join(mapping.ignored)}; give "
                "its keypoints the same names in its skeleton file, and build its store again"
            )
        for other in sets[:number]:
            if other.store.fingerprint == store.fingerprint:
                raise DataError(f"data sets {other.name} and {name} are the same; give one, with a larger weight")
            shared = find_shared_images(other.store, store)
            if is_plain_path and other.is_plain_path and len(shared):
                raise DataError(
                    f"{other.store.path} and {store.path} share {len(shared)} images, such as image {shared[0, 1]} of "
                    "the second; name stores with different images, or list them as tables to draw from both: "
                    "{path = ...}"
                )
    return StoreList(sets, skeleton)


def find_shared_images(first: Store | StoreList, second: Store | StoreList) -> np.ndarray:
    """(M, 2) int64: the ids in both stores of the image files that they share.

    The bytes alone are compared: importing numbers the images anew, so the same image may have another id.
    """
    _, first_rows, second_rows = np.intersect1d(first.image_keys, second.image_keys, return_indices=True)
    return np.stack([first.image_ids[first_rows], second.image_ids[second_rows]], axis=1)


def find_stored_files(stores: StoreList, paths: Sequence[Path]) -> list[Path]:
    """The image files whose bytes the stores contain too.

    Only files of a size that the stores contain are read. A file that cannot be read is left out.
    """
    stored = set(stores.image_keys.tolist())
    stored_sizes = {key >> 32 for key in stored}
    found = []
    for path in paths:
        with suppress(OSError):
            if path.stat().st_size in stored_sizes:
                data = read_input(path)
                if make_image_keys(np.array(len(data)), np.array(zlib.crc32(data))).item() in stored:
                    found.append(path)
    return found


def describe_content(stores: StoreList) -> str:
    """The content in a few words, which differ where images or people do."""
    return f"{stores.num_images} images and {len(stores)} samples with the fingerprint {stores.fingerprint[:8]}"
