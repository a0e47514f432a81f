"""Anything that training can read records from: a store, or several of them read as one."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from posenet.data.store.reader import StoreSummary
from posenet.data.store.record import Record
from posenet.skeleton import Skeleton


class RecordStore(Protocol):
    """The part of ``reader.Store``, which describes it, that training, verification and statistics use."""

    @property
    def skeleton(self) -> Skeleton: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def image_ids(self) -> np.ndarray: ...
    @property
    def digests(self) -> np.ndarray: ...
    @property
    def samples(self) -> np.ndarray: ...
    @property
    def num_images(self) -> int: ...
    @property
    def num_people(self) -> int: ...
    def __len__(self) -> int: ...
    def summary(self) -> StoreSummary: ...
    def read_sample(self, index: int) -> tuple[Record, int]: ...
    def read_record(self, index: int) -> Record: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class ConcatenatedStore:
    """Several stores read as one: the records of the first, then those of the second, and so on.

    Only the counts are kept here. ``image_ids``, ``digests`` and ``samples`` are assembled on every access.
    """

    def __init__(self, parts: Sequence[RecordStore]) -> None:
        self.parts = list(parts)
        self._image_ends = list(accumulate(part.num_images for part in self.parts))
        self._sample_ends = list(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._sample_ends[-1]

    @property
    def num_images(self) -> int:
        return self._image_ends[-1]

    @property
    def num_people(self) -> int:
        return sum(part.num_people for part in self.parts)

    @property
    def skeleton(self) -> Skeleton:
        return self.parts[0].skeleton

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fingerprints of all parts, in hexadecimal."""
        return hashlib.sha256("".join(part.fingerprint for part in self.parts).encode()).hexdigest()

    @property
    def image_ids(self) -> np.ndarray:
        return np.concatenate([part.image_ids for part in self.parts])

    @property
    def digests(self) -> np.ndarray:
        return np.concatenate([part.digests for part in self.parts])

    @property
    def samples(self) -> np.ndarray:
        first_images = [0, *self._image_ends[:-1]]
        return np.concatenate([part.samples + (first, 0) for part, first in zip(self.parts, first_images)])

    def summary(self) -> StoreSummary:
        summaries = [part.summary() for part in self.parts]
        totals = {
            field.name: sum(getattr(summary, field.name) for summary in summaries) for field in fields(StoreSummary)
        }
        return StoreSummary(**totals)

    def find_sample(self, index: int) -> tuple[int, int]:
        """The number of the part that contains a sample, and the index of the part's first sample."""
        return _find_part(self._sample_ends, index)

    def find_image(self, index: int) -> tuple[int, int]:
        """The number of the part that contains an image, and the row of the part's first image."""
        return _find_part(self._image_ends, index)

    def read_sample(self, index: int) -> tuple[Record, int]:
        """Read the record of a sample, and return it with the row of the main person among its people."""
        part, start = self.find_sample(index)
        return self.parts[part].read_sample(index - start)

    def read_record(self, index: int) -> Record:
        """Read the image in row ``index`` with all its people; ``DataError`` if the file is damaged."""
        part, start = self.find_image(index)
        return self.parts[part].read_record(index - start)

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _find_part(ends: Sequence[int], index: int) -> tuple[int, int]:
    """The part that contains an index, and its first index. ``ends[i]`` is the first index after part i."""
    if not 0 <= index < ends[-1]:
        raise IndexError(f"index {index} of {ends[-1]}")
    part = bisect_right(ends, index)
    return part, ends[part - 1] if part else 0
