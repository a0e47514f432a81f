"""The store: one HDF5 file per split that holds pictures, people and masks.

Layout. Three flat byte arrays hold the pictures' original bytes (``jpeg``) and the compressed run lengths of the
two masks; ``*_offset`` arrays of one entry more than there are images say where each image's slice begins. People lie
in file order in ``joints``, ``box``, ``area`` and ``annotation_id``, sliced by ``person_offset``. ``sample`` has one
(image row, person row within the image) for every main person. Nothing is filtered, so that reading is a slice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from posenet.data.record import Record
from posenet.data.rows import Rows
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton

FORMAT = "posenet store"
SCHEMA = 1
DIGEST_BYTES = 16
BLOBS = ("jpeg", "mask_all", "mask_miss")
READ = (*BLOBS, "joints")
"""The arrays that are not held in memory."""
UNREADABLE = (OSError, KeyError, RuntimeError, TypeError, ValueError)
"""What h5py raises on damaged files."""
BLOCK = 2 ** 15
"""Rows looked at in one go when a store is opened."""


def columns(num_keypoints: int) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Name of every array but the flat ones: dtype, shape of one row, and what it has rows for."""
    return {
        "image_id": ("<i8", (), "images"),
        "file_name": ("S", (), "images"),
        "height": ("<i4", (), "images"),
        "width": ("<i4", (), "images"),
        "digest": ("u1", (DIGEST_BYTES,), "images"),
        **{f"{name}_offset": ("<i8", (), "offsets") for name in (*BLOBS, "person")},
        "joints": ("<f4", (num_keypoints, 3), "people"),
        "box": ("<f4", (4,), "people"),
        "area": ("<f4", (), "people"),
        "annotation_id": ("<i8", (), "people"),
        "sample": ("<i8", (2,), "samples"),
    }


class Store:
    """Reads a store.

    The header is checked; all arrays but pictures, masks and joints are held in memory (some 15 MB for the whole of
    COCO). The file is opened anew in every process that reads it, whether forked or spawned;
    pickling takes the path alone.

    Attributes:
        image_ids: (N,) int64.
        digests: (N, 16) uint8, BLAKE2b of the picture's bytes.
        samples: (S, 2) int64, image row and person row within that image.

    Raises:
        DataError: the file is missing, damaged, no store, or of another schema or skeleton.
    """

    def __init__(self, path: str | Path, skeleton: Skeleton = COCO) -> None:
        self.path = Path(path)
        self.skeleton = skeleton
        self._handle: tuple[int, h5py.File, dict[str, Rows]] | None = None
        with self._reading(), self._open() as file:
            _check_header(file, skeleton)
            self._columns = _read_columns(file, skeleton)
            self.fingerprint = str(file.attrs["fingerprint"])
        self.image_ids = self._columns["image_id"]
        self.digests = self._columns["digest"]
        self.samples = self._columns["sample"]
        self._offsets = np.stack([self._columns[f"{name}_offset"] for name in (*BLOBS, "person")], axis=1)
        self._images = np.stack([self._columns[name] for name in ("image_id", "height", "width")], axis=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.path, self.skeleton)

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
    def picture_bytes(self) -> int:
        return int(self._columns["jpeg_offset"][-1])

    def sample(self, index: int) -> tuple[Record, int]:
        """The image of sample ``index`` and the row of the main person among its people."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        image, person = self.samples[index].tolist()
        return self.image(image), person

    def image(self, index: int) -> Record:
        """The image in row ``index`` with all its people; ``DataError`` where the file cannot be read."""
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        try:
            return self._read(index)
        except UNREADABLE as error:  # ``_reading`` takes longer than some of the reads
            raise self._fault(error) from error

    def _read(self, index: int) -> Record:
        table, rows = self._columns, self._rows()
        # One look into one table: some microseconds less than a slice of every array.
        starts, stops = self._offsets[index:index + 2].tolist()
        image_id, height, width = self._images[index].tolist()
        people = slice(starts[3], stops[3])
        return Record(
            self.path, image_id, table["file_name"][index].decode(), height, width,
            jpeg=rows["jpeg"].read(starts[0], stops[0]),
            joints=rows["joints"].read(starts[3], stops[3]),
            boxes=table["box"][people], areas=table["area"][people], annotation_ids=table["annotation_id"][people],
            mask_all_rle=rows["mask_all"].read_bytes(starts[1], stops[1]),
            mask_miss_rle=rows["mask_miss"].read_bytes(starts[2], stops[2]))

    def column(self, name: str) -> np.ndarray:
        """A whole array, by its name in the file; see ``columns``."""
        if name in self._columns:
            return self._columns[name]
        with self._reading():
            return self._rows()[name].read_all()

    def content_fingerprint(self) -> str:
        """What ``fingerprint`` must be, computed from all arrays as they are now."""
        return fingerprint(self._columns | {name: self.column(name) for name in READ[1:]})

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
        # Slices of pictures never repeat, so that a chunk cache would only copy.
        return h5py.File(self.path, "r", rdcc_nbytes=0)

    def _rows(self) -> dict[str, Rows]:
        """The arrays that are not in memory, through this process's own handle, which is set at once for threads."""
        process, file, rows = self._handle or (0, None, {})
        if process != os.getpid():
            if file is not None:
                file.close()  # the forked child's copy of the parent's handle
            file = self._open()
            if file.attrs["fingerprint"] != self.fingerprint:
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


def content_digest(data: np.ndarray) -> np.ndarray:
    """(16,) uint8 BLAKE2b of ``data``'s bytes."""
    return np.frombuffer(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(), np.uint8)


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """Hexadecimal digest of all arrays but ``jpeg``; the pictures are in it through their own digests."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(set(arrays) - {"jpeg"}):
        digest.update(np.ascontiguousarray(arrays[name]))
    return digest.hexdigest()


def describe(skeleton: Skeleton) -> str:
    """The skeleton as a store's attribute, JSON."""
    return json.dumps({"keypoints": skeleton.keypoints, "derived": skeleton.derived, "parts": skeleton.parts})


def _check_header(file: h5py.File, skeleton: Skeleton) -> None:
    if file.attrs.get("format") != FORMAT:
        raise ValueError("not written by tools/build_hdf5.py, or never finished")
    if (schema := int(file.attrs["schema"])) > SCHEMA:
        raise DataError(f"{file.filename} has schema {schema}, this program reads up to {SCHEMA}; update posenet")
    if schema < SCHEMA:
        raise ValueError(f"schema {schema} is no longer read")
    stored, wanted = json.loads(file.attrs["skeleton"]), json.loads(describe(skeleton))
    if any(stored[key] != wanted[key] for key in ("keypoints", "derived")):
        raise ValueError(f"built for another skeleton, with the keypoints {', '.join(stored['keypoints'])}")


def _read_columns(file: h5py.File, skeleton: Skeleton) -> dict[str, np.ndarray]:
    """The arrays that are held in memory; all but the pictures and masks are checked against each other."""
    rows = {key: int(file.attrs[key]) for key in ("images", "people", "samples")}
    rows["offsets"] = rows["images"] + 1
    table = {}
    for name, (dtype, shape, counted) in columns(skeleton.num_keypoints).items():
        dataset = _dataset(file, name, dtype)
        if dataset.shape != (rows[counted], *shape):
            raise ValueError(f"{name} has the shape {dataset.shape}")
        if np.issubdtype(dataset.dtype, np.floating):
            _check_finite(dataset)
        if name not in READ:
            table[name] = dataset[:]
    ends = {name: len(_dataset(file, name, "u1")) for name in BLOBS} | {"person": rows["people"]}
    for name, end in ends.items():
        offsets = table[f"{name}_offset"]
        if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) <= 0).any():
            raise ValueError(f"{name}_offset does not cut {name} into slices")
    images, people = table["sample"].T
    if not len(images) or min(images.min(), people.min()) < 0 or images.max() >= rows["images"]:
        raise ValueError("samples of images that it does not hold")
    if (people >= np.diff(table["person_offset"])[images]).any():
        raise ValueError("samples of people that it does not hold")
    if min(table["height"].min(), table["width"].min()) <= 0:
        raise ValueError("pictures without a size")
    return table


def _check_finite(dataset: h5py.Dataset) -> None:
    """``ValueError`` unless all numbers are finite; a block at a time, which keeps the memory constant."""
    for start in range(0, len(dataset), BLOCK):
        if not np.isfinite(dataset[start:start + BLOCK]).all():
            raise ValueError("coordinates that are not finite")


def _dataset(file: h5py.File, name: str, dtype: str) -> h5py.Dataset:
    """A dataset of the file itself: no link or reference out of it, and no larger than it."""
    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} is missing or lies outside the file")
    if not np.issubdtype(dataset.dtype, np.dtype(dtype).type):
        raise ValueError(f"{name} has the type {dataset.dtype}")
    if dataset.nbytes > os.path.getsize(file.filename):
        raise ValueError(f"{name} claims {dataset.nbytes} bytes, more than the file has")
    return dataset
