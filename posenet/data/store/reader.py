"""Reads a store."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from posenet.data.store.parsing import open_file, read_attribute, read_skeleton, read_table
from posenet.data.store.record import Record
from posenet.data.store.row_reader import FileDescriptor, RowReader
from posenet.data.store.schema import ARRAYS_READ_ON_DEMAND, checksum
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton

RETRY_SECONDS = (0.1, 0.5, 2.0)
"""Seconds to wait before each new attempt to read from a file system that fails."""
MAX_OPEN_FILES = 128
"""Stores that a process keeps open; opening another one closes the one that has been open the longest."""
H5PY_ERRORS = (OSError, LookupError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError)
"""Errors that h5py raises on damaged files."""


@dataclass(frozen=True)
class StoreSummary:
    """Counts and sizes of a store. There is one sample per main person."""

    num_images: int
    num_people: int
    num_samples: int
    num_image_bytes: int
    num_file_bytes: int


class _FileIdentity(NamedTuple):
    """Values that differ between a file and any other that takes its name later."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, descriptor: int) -> _FileIdentity:
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class _Layout(NamedTuple):
    """Where the arrays are in a file, so that reading them again does not need HDF5."""

    identity: _FileIdentity
    readers: dict[str, RowReader]


class _OpenFile(NamedTuple):
    """The file of a store, opened by one process. A thread that reads must keep a reference."""

    process_id: int
    file: h5py.File | FileDescriptor
    descriptor: int
    """For the readers; -1 on a system without ``pread``."""
    readers: dict[str, RowReader]


_opened_stores: list[weakref.ref[Store]] = []
"""The stores that have been opened in this process, the latest last."""


class Store:
    """A store that is open for reading.

    Opening checks the header and reads all arrays except images, masks and joints into memory: about 15 MB for all of
    COCO. Every process, forked or spawned, opens the file again. Pickling transfers only the path, the skeleton and the
    fingerprint.

    Args:
        skeleton: the skeleton that the store must have been built for; None accepts any.

    Raises:
        DataError: the file is missing, damaged, not a store, or has another schema or skeleton.
    """

    def __init__(self, path: str | Path, skeleton: Skeleton | None = COCO) -> None:
        self.path = Path(path)
        self._open_file: _OpenFile | None = None
        self._layout: _Layout | None = None
        with self._data_errors(), open_file(self.path) as file:
            self.skeleton = read_skeleton(file, skeleton)
            self._table = read_table(file, self.skeleton)
            self.fingerprint = str(read_attribute(file, "fingerprint"))
            self.build = str(read_attribute(file, "build")) if "build" in file.attrs else ""
        table = self._table
        self.image_ids = table["image_id"]  # (N,) int64
        self.digests = table["digest"]  # (N, 16) uint8, half of the SHA-256 of each image's bytes
        self.samples = table["sample"]  # (S, 2) int64: row of the image, and row of the main person within that image
        # Reading one row of these takes some microseconds less than reading one entry of every array.
        orientations = table.get("orientation", np.ones_like(table["height"]))
        self._ids_and_sizes = np.stack([table["image_id"], table["height"], table["width"], orientations], axis=1)
        self._offsets = np.stack(
            [table["jpeg_offset"], table["mask_all_offset"], table["mask_miss_offset"], table["person_offset"]], axis=1
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The fingerprint lets a process that starts later detect that the store has been rebuilt in the meantime.
        return Store, (self.path, self.skeleton), {"fingerprint": self.fingerprint}

    def __len__(self) -> int:
        """Number of samples: one for every main person."""
        return len(self.samples)

    @property
    def num_images(self) -> int:
        return len(self.image_ids)

    @property
    def num_people(self) -> int:
        return int(self._table["person_offset"][-1])

    @property
    def num_image_bytes(self) -> int:
        """Size of all image files together."""
        return int(self._table["jpeg_offset"][-1])

    def summary(self) -> StoreSummary:
        file_bytes = self.path.stat().st_size
        return StoreSummary(self.num_images, self.num_people, len(self), self.num_image_bytes, file_bytes)

    def read_sample(self, index: int) -> tuple[Record, int]:
        """Read the record of a sample, and return it with the row of the main person among its people."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        image, person = self.samples[index].tolist()
        return self.read_record(image), person

    def read_record(self, index: int) -> Record:
        """Read the image in row ``index`` with all its people; ``DataError`` if the file is damaged."""
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        for seconds in RETRY_SECONDS:
            try:
                return self._read_record_once(index)
            except OSError:
                self.close()  # the open file may be stale
                time.sleep(seconds)
            except H5PY_ERRORS as error:  # ``_data_errors`` takes longer than some of the reads
                raise self._data_error(error) from error
        with self._data_errors():
            return self._read_record_once(index)

    def _read_record_once(self, index: int) -> Record:
        table = self._table
        opened = self._opened()
        readers = opened.readers
        descriptor = opened.descriptor
        image_id, height, width, orientation = self._ids_and_sizes[index].tolist()
        starts, stops = self._offsets[index : index + 2].tolist()
        image_start, mask_all_start, mask_miss_start, person_start = starts
        image_stop, mask_all_stop, mask_miss_stop, person_stop = stops
        record = Record(
            source=self.path,
            image_id=image_id,
            file_name=table["file_name"][index].decode(),
            height=height,
            width=width,
            image_bytes=readers["jpeg"].read(descriptor, image_start, image_stop),
            joints=readers["joints"].read(descriptor, person_start, person_stop),
            boxes=table["box"][person_start:person_stop],
            areas=table["area"][person_start:person_stop],
            annotation_ids=table["annotation_id"][person_start:person_stop],
            mask_all_rle=readers["mask_all"].read_bytes(descriptor, mask_all_start, mask_all_stop),
            mask_miss_rle=readers["mask_miss"].read_bytes(descriptor, mask_miss_start, mask_miss_stop),
            orientation=orientation,
        )
        if checksum(record) != table["checksum"][index] or not np.isfinite(record.joints).all():
            raise record.damage_error("is damaged: its image, masks or joints do not match the checksum")
        return record

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._open_file is not None:
            self._open_file.file.close()
            self._open_file = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> _OpenFile:
        """The open file. Opens it on the first call in every process."""
        opened = self._open_file
        if opened is None or opened.process_id != os.getpid():
            if opened is not None:
                opened.file.close()  # a forked child's copy of the parent's handle
            opened = self._reopen() or self._open()
            self._open_file = opened  # one assignment, because threads share the store
            _limit_open_files(self)
        return opened

    def _reopen(self) -> _OpenFile | None:
        """Open the file without HDF5, in some microseconds; None if it has not been open before, or is another file."""
        layout = self._layout
        if layout is None:
            return None
        file = FileDescriptor(os.open(self.path, os.O_RDONLY))
        if _FileIdentity.of(file.number) != layout.identity:
            file.close()
            return None
        return _OpenFile(os.getpid(), file, file.number, layout.readers)

    def _open(self) -> _OpenFile:
        """Open the file with HDF5, find its arrays, and close it again if they can be read without HDF5.

        An open HDF5 file takes 0.6 MB of memory.
        """
        file = open_file(self.path)
        if read_attribute(file, "fingerprint") != self.fingerprint:
            file.close()
            raise ValueError("rebuilt while in use")
        readers = {name: RowReader(file[name]) for name in ARRAYS_READ_ON_DEMAND}
        descriptor = file.id.get_vfd_handle() if hasattr(os, "pread") else -1
        if any(reader.needs_hdf5 for reader in readers.values()):
            return _OpenFile(os.getpid(), file, descriptor, readers)
        copy = FileDescriptor(os.dup(descriptor))
        file.close()
        self._layout = _Layout(_FileIdentity.of(copy.number), readers)
        return _OpenFile(os.getpid(), copy, copy.number, readers)

    @contextlib.contextmanager
    def _data_errors(self) -> Iterator[None]:
        """Turn the errors of h5py into ``DataError``."""
        try:
            yield
        except H5PY_ERRORS as error:
            raise self._data_error(error) from error

    def _data_error(self, error: Exception) -> DataError:
        if isinstance(error, FileNotFoundError):
            return DataError(f"{self.path} does not exist; build it with tools/build_hdf5.py")
        if isinstance(error, (PermissionError, IsADirectoryError)):
            return DataError(f"cannot read store {self.path}: {os.strerror(error.errno or 0)}")
        reason = " ".join(str(error).split())
        return DataError(f"{self.path} cannot be used as a store ({reason}); rebuild it with tools/build_hdf5.py")


def _limit_open_files(latest: Store) -> None:
    """Close the store that has been open the longest if ``latest`` is one too many."""
    still_open = []
    for reference in _opened_stores:
        store = reference()
        if store is not None and store is not latest and store._open_file is not None:
            still_open.append(reference)
    if len(still_open) >= MAX_OPEN_FILES and (oldest := still_open.pop(0)()) is not None:
        # Another thread may be reading from the file. It is closed when that thread drops its reference.
        oldest._open_file = None
    _opened_stores[:] = [*still_open, weakref.ref(latest)]
