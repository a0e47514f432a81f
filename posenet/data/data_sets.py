"""Several data sets as one: stores with different skeletons, mapped to the skeleton of one network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from posenet.data.sampler import Draws
from posenet.data.store.record import Record, Supervision
from posenet.data.store.record_store import ConcatenatedStore, RecordStore
from posenet.data.store.shards import open_store
from posenet.data.store.statistics import Table
from posenet.errors import DataError
from posenet.settings import DataSetConfig, DataSets
from posenet.skeleton import Skeleton
from posenet.skeleton.keypoint_mapping import KeypointMapping


def open_data_sets(setting: DataSets, skeleton: Skeleton) -> RecordStore:
    """Open ``data.train`` or ``data.val``: a store for exactly this skeleton, or a mixture that is mapped to it.

    Raises:
        DataError: a store cannot be used; see ``open_store`` and ``DataSetMixture``.
    """
    if isinstance(setting, str):
        return open_store(setting, skeleton)
    if tables := [item for item in setting if isinstance(item, DataSetConfig)]:
        return DataSetMixture(tables, skeleton)
    return open_store([str(path) for path in setting], skeleton)


class DataSetMixture(ConcatenatedStore):
    """The records of several data sets, one set after the other, with joints of the network's skeleton.

    Every record has a ``supervision``, which names its set and the output channels that the set supervises.

    Attributes:
        parts: the stores, with the joints of their own skeletons.
        data_sets: the settings of the sets.
        mappings: from the skeletons of the sets to that of the network.

    Raises:
        DataError: a store cannot be used, has no keypoint of the network, or is given twice.
    """

    def __init__(self, data_sets: Sequence[DataSetConfig], skeleton: Skeleton) -> None:
        super().__init__([open_store(data_set.path, None) for data_set in data_sets])
        self.data_sets = tuple(data_sets)
        self.mappings = [KeypointMapping(part.skeleton, skeleton) for part in self.parts]
        self._skeleton = skeleton
        self._check()
        masks = [mapping.supervised_channels() for mapping in self.mappings]
        supervises_all = all(mask.all() for mask in masks)
        self._supervisions = []
        for index, mask in enumerate(masks):
            flipped = mask[skeleton.flip_channels]
            channels = None if supervises_all else np.stack([mask, flipped])
            self._supervisions.append(Supervision(index, channels))

    @property
    def skeleton(self) -> Skeleton:
        """That of the network."""
        return self._skeleton

    @property
    def names(self) -> list[str]:
        return [data_set.label for data_set in self.data_sets]

    def read_sample(self, index: int) -> tuple[Record, int]:
        """Read the record of a sample, and return it with the row of the main person among its people."""
        part, start = self.find_sample(index)
        record, person_row = self.parts[part].read_sample(index - start)
        return self._convert(part, record), person_row

    def read_record(self, index: int) -> Record:
        """Read the image in row ``index`` with all its people; ``DataError`` if the file is damaged."""
        part, start = self.find_image(index)
        return self._convert(part, self.parts[part].read_record(index - start))

    def draws(self, framing: str) -> list[Draws]:
        """The number of samples of every set, and how many of them an epoch draws: round(weight · size), at least 1."""
        draws = []
        for data_set, part in zip(self.data_sets, self.parts):
            size = part.num_images if framing == "image" else len(part)
            draws.append(Draws(size, max(1, round(data_set.weight * size))))
        return draws

    def never_supervised(self) -> list[str]:
        """The names of the network's keypoints and body parts that no set supervises."""
        supervised = np.any([mapping.supervised_channels() for mapping in self.mappings], axis=0)  # (C,)
        names = ["-".join(part) for part in self._skeleton.parts] + list(self._skeleton.keypoints)
        return [name for name, is_supervised in zip(names, supervised) if not is_supervised]

    def describe(self, framing: str) -> Table:
        """What every set contributes to an epoch, and which keypoints it does not supervise."""
        draws = self.draws(framing)
        total = sum(per_epoch for _, per_epoch in draws)
        rows = []
        for name, mapping, (size, per_epoch) in zip(self.names, self.mappings, draws):
            rows.append((name, size, per_epoch, f"{per_epoch / total:.1%}", " ".join(mapping.missing)))
        header = ("name", "samples", "per epoch", "of the epoch", "keypoints not supervised")
        return Table("Data sets", header, rows)

    def _convert(self, part: int, record: Record) -> Record:
        joints = self.mappings[part].map_joints(record.joints)
        return dataclasses.replace(record, joints=joints, supervision=self._supervisions[part])

    def _check(self) -> None:
        name_of_fingerprint: dict[str, str] = {}
        for name, part, mapping in zip(self.names, self.parts, self.mappings):
            if not mapping.has_common_keypoints:
                raise DataError(
                    f"data set {name} shares no keypoint with model.skeleton: it has {', '.join(mapping.ignored)}; "
                    "give its keypoints the same names in its skeleton file, and build its store again"
                )
            other = name_of_fingerprint.setdefault(part.fingerprint, name)
            if other != name:
                raise DataError(f"data sets {other} and {name} are the same; give one of them, with a larger weight")
