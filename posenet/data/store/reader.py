"""The store: one HDF5 file per split that holds images, people and masks; ``schema`` says how."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from posenet.data.store.dataset_rows import Rows
from posenet.data.store.record import Record
from posenet.data.store.schema import BLOBS, FORMAT, READ, SCHEMA, SUPERBLOCKS, checksum, columns, describe, fingerprint
from posenet.errors import DataError
from posenet.images.decoding import MAX_PIXELS
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table

RETRY_SECONDS = (0.1, 0.5, 2.0)
"""How long to wait before each new try to read from a file system that fails."""
UNREADABLE = (OSError, LookupError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError)
"""What h5py raises on damaged files."""


class Store:
    """Reads a store.

    The header is checked; all arrays but images, masks and joints are held in memory (some 15 MB for the whole of
    COCO). The file is opened anew in every process that reads it, whether forked or spawned;
    pickling takes the path, the skeleton and the fingerprint.

    Attributes:
        image_ids: (N,) int64.
        digests: (N, 16) uint8, half of the SHA-256 of the image's bytes.
        samples: (S, 2) int64, image row and person row within that image.

    Args:
        skeleton: the one the store must have been built for; None takes the store's own.

    Raises:
        DataError: the file is missing, damaged, no store, or of another schema or skeleton.
    """

    def __init__(self, path: str | Path, skeleton: Skeleton | None = COCO) -> None:
        self.path = Path(path)
        self._handle: tuple[int, h5py.File, dict[str, Rows]] | None = None
        with self._reading(), self._open() as file:
            self.skeleton = _check_header(file, skeleton)
            self._columns = _read_columns(file, self.skeleton)
            self.fingerprint = str(_attribute(file, "fingerprint"))
            if fingerprint(self._columns) != self.fingerprint:
                raise ValueError("its people or its table of images are not those that were written")
        self.image_ids = self._columns["image_id"]
        self.digests = self._columns["digest"]
        self.samples = self._columns["sample"]
        self._offsets = np.stack([self._columns[f"{name}_offset"] for name in (*BLOBS, "person")], axis=1)
        self._images = np.stack([self._columns[name] for name in ("image_id", "height", "width")], axis=1)

    def __reduce__(self) -> tuple[Any, ...]:
        # With the fingerprint: a process that is started later must not take a store that was rebuilt meanwhile.
        return Store, (self.path, self.skeleton), {"fingerprint": self.fingerprint}

    def __len__(self) -> int:
        """Samples, one for every main person."""
        return len(self.samples)

    @property
    def num_images(self) -> int:
        return len(self.image_ids)

    @property
    def num_people(self) -> int:
        return int(self._columns["person_offset"][-1])

    @property
    def image_bytes(self) -> int:
        return int(self._columns["jpeg_offset"][-1])

    def sample(self, index: int) -> tuple[Record, int]:
        """The image of sample ``index`` and the row of the main person among its people."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        image, person = self.samples[index].tolist()
        return self.image(image), person

    def image(self, index: int) -> Record:
        """The image in row ``index`` with all its people; ``DataError`` where they are not what was written."""
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        for seconds in RETRY_SECONDS:
            try:
                return self._read(index)
            except OSError:
                self.close()  # the handle may be stale
                time.sleep(seconds)
            except UNREADABLE as error:  # ``_reading`` takes longer than some of the reads
                raise self._fault(error) from error
        with self._reading():
            return self._read(index)

    def _read(self, index: int) -> Record:
        table, rows = self._columns, self._rows()
        # One look into one table: some microseconds less than a slice of every array.
        starts, stops = self._offsets[index : index + 2].tolist()
        image_id, height, width = self._images[index].tolist()
        people = slice(starts[3], stops[3])
        record = Record(
            self.path,
            image_id,
            table["file_name"][index].decode(),
            height,
            width,
            jpeg=rows["jpeg"].read(starts[0], stops[0]),
            joints=rows["joints"].read(starts[3], stops[3]),
            boxes=table["box"][people],
            areas=table["area"][people],
            annotation_ids=table["annotation_id"][people],
            mask_all_rle=rows["mask_all"].read_bytes(starts[1], stops[1]),
            mask_miss_rle=rows["mask_miss"].read_bytes(starts[2], stops[2]),
        )
        if checksum(record) != table["checksum"][index] or not np.isfinite(record.joints).all():
            raise record.fault("has another image, masks or joints than were written")
        return record

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._handle is not None:
            self._handle[1].close()
            self._handle = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> h5py.File:
        with open(self.path, "rb") as raw:
            if raw.read(len(SUPERBLOCKS[0])) not in SUPERBLOCKS:
                raise ValueError("not an HDF5 file of the layout with checksums")
        # Slices of images never repeat, so that a chunk cache would only copy.
        return h5py.File(self.path, "r", rdcc_nbytes=0)

    def _rows(self) -> dict[str, Rows]:
        """The arrays that are not in memory, through this process's own handle, which is set at once for threads."""
        process, file, rows = self._handle or (0, None, {})
        if process != os.getpid():
            if file is not None:
                file.close()  # the forked child's copy of the parent's handle
            file = self._open()
            if _attribute(file, "fingerprint") != self.fingerprint:
                file.close()
                raise ValueError("rebuilt while in use")
            rows = {name: Rows(file[name]) for name in READ}
            self._handle = os.getpid(), file, rows
        return rows

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> DataError:
        if isinstance(error, FileNotFoundError):
            return DataError(f"{self.path} does not exist; build it with tools/build_hdf5.py")
        if isinstance(error, (PermissionError, IsADirectoryError)):
            return DataError(f"cannot read store {self.path}: {os.strerror(error.errno)}")
        reason = " ".join(str(error).split())
        return DataError(f"{self.path} cannot be used as a store ({reason}); build it anew with tools/build_hdf5.py")


def overlap(a: Store, b: Store) -> np.ndarray:
    """(M,) int64, sorted: ids of the images that both stores hold with the same bytes."""
    common, rows_a, rows_b = np.intersect1d(a.image_ids, b.image_ids, return_indices=True)
    return common[(a.digests[rows_a] == b.digests[rows_b]).all(axis=1)]


def _attribute(file: h5py.File, name: str) -> Any:
    """An attribute that lies where the checksums of its object reach.

    Text of variable length does not: HDF5 keeps it in a heap without checksums, and may search a damaged one for ever.
    """
    kind = file.attrs.get_id(name).get_type()
    fixed = isinstance(kind, h5py.h5t.TypeIntegerID) or (
        isinstance(kind, h5py.h5t.TypeStringID) and not (kind.is_variable_str())
    )
    if not fixed:
        raise ValueError(f"{name} is not as this version writes it: an older store, or a damaged one")
    value = file.attrs[name]
    return value.decode() if isinstance(value, bytes) else value


def _check_header(file: h5py.File, skeleton: Skeleton | None) -> Skeleton:
    """The skeleton that the joints follow, which is the one given."""
    if "format" not in file.attrs or _attribute(file, "format") != FORMAT:
        raise ValueError("not written by tools/build_hdf5.py, or never finished")
    if (schema := int(_attribute(file, "schema"))) > SCHEMA:
        raise DataError(f"{file.filename} has schema {schema}, this program reads up to {SCHEMA}; update posenet")
    if schema < SCHEMA:
        raise ValueError(f"schema {schema} is no longer read")
    stored = json.loads(_attribute(file, "skeleton"))
    if skeleton is None:
        # The first stores, all of the built-in skeleton, did not hold the whole of it.
        skeleton = skeleton_from_table(stored["table"]) if "table" in stored else COCO
    wanted = json.loads(describe(skeleton))
    if any(stored[key] != wanted[key] for key in ("keypoints", "derived")):
        raise ValueError(
            f"built for another skeleton than model.skeleton, with the keypoints {', '.join(stored['keypoints'])}"
        )
    return skeleton


def _read_columns(file: h5py.File, skeleton: Skeleton) -> dict[str, np.ndarray]:
    """The arrays that are held in memory, checked against each other."""
    rows = {key: int(_attribute(file, key)) for key in ("images", "people", "samples")}
    rows["offsets"] = rows["images"] + 1
    kinds = columns(skeleton.num_keypoints)
    datasets = {name: _dataset(file, name, dtype) for name, (dtype, *_) in kinds.items()}
    for name, (_, shape, pluralize) in kinds.items():
        if datasets[name].shape != (rows[pluralize], *shape):
            raise ValueError(f"{name} has the shape {datasets[name].shape}")
    blobs = {name: _dataset(file, name, "u1") for name in BLOBS}
    claimed = sum(dataset.nbytes for dataset in (*datasets.values(), *blobs.values()))
    if claimed > os.path.getsize(file.filename):
        raise ValueError(f"its arrays claim {claimed} bytes, more than the file has")
    table = {name: dataset[:] for name, dataset in datasets.items() if name not in READ}
    ends = {name: len(dataset) for name, dataset in blobs.items()} | {"person": rows["people"]}
    for name, end in ends.items():
        offsets = table[f"{name}_offset"]
        if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) <= 0).any():
            raise ValueError(f"{name}_offset does not cut {name} into slices")
    images, people = table["sample"].T
    if not len(images) or min(images.min(), people.min()) < 0 or images.max() >= rows["images"]:
        raise ValueError("samples of images that it does not hold")
    if (people >= np.diff(table["person_offset"])[images]).any():
        raise ValueError("samples of people that it does not hold")
    if (table["box"][table["person_offset"][images] + people, 2:] <= 0).any():
        raise ValueError("samples of people whose boxes are empty")
    height, width = table["height"].astype(np.int64), table["width"].astype(np.int64)
    if min(height.min(), width.min()) <= 0 or (height * width).max() > MAX_PIXELS:
        raise ValueError("images without a size, or of an absurd one")
    if not all(np.isfinite(table[name]).all() for name in ("box", "area")):
        raise ValueError("coordinates that are not finite")
    return table


def _dataset(file: h5py.File, name: str, dtype: str) -> h5py.Dataset:
    """A dataset of the file itself: no link or reference out of it, and nothing that unpacks to more than it."""
    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} is missing or lies outside the file")
    if not np.issubdtype(dataset.dtype, np.dtype(dtype).type):
        raise ValueError(f"{name} has the type {dataset.dtype}")
    chunk = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
    if dataset.id.get_create_plist().get_nfilters() or chunk > os.path.getsize(file.filename):
        raise ValueError(f"{name} is compressed, or in pieces larger than the file")
    return dataset
