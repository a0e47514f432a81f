"""The store: one HDF5 file per split that holds pictures, people and masks.

Layout. Three flat byte arrays hold the pictures' original bytes (``jpeg``) and the compressed run lengths of the
two masks; ``*_offset`` arrays of one entry more than there are images say where each image's slice begins. People lie
in file order in ``joints``, ``box``, ``area`` and ``annotation_id``, sliced by ``person_offset``. ``sample`` has one
(image row, person row within the image) for every main person. Nothing is filtered, so that reading is a slice.

Soundness. HDF5's own structures carry checksums (the layout of HDF5 1.10), which the library verifies as it follows
them. ``digest`` is of every picture's bytes, ``label_digest`` of its masks and joints; both are compared at each
reading. The attribute ``fingerprint`` is of all other arrays, compared on opening. No damage passes for data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from posenet.data.picture import MAX_PIXELS
from posenet.data.record import Record
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton_file import skeleton_from_table, skeleton_to_table

FORMAT = "posenet store"
SCHEMA = 2
DIGEST_BYTES = 16
BLOBS = ("jpeg", "mask_all", "mask_miss")
SUPERBLOCKS = (b"\x89HDF\r\n\x1a\n\x02", b"\x89HDF\r\n\x1a\n\x03")
"""How an HDF5 file begins whose structures carry checksums."""
RETRY_SECONDS = (0.1, 0.5, 2.0)
"""How long to wait before each new try to read from a file system that fails."""


def columns(num_keypoints: int) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Name of every array but the flat ones: dtype, shape of one row, and what it has rows for."""
    return {
        "image_id": ("<i8", (), "images"),
        "file_name": ("S", (), "images"),
        "height": ("<i4", (), "images"),
        "width": ("<i4", (), "images"),
        "digest": ("u1", (DIGEST_BYTES,), "images"),
        "label_digest": ("u1", (DIGEST_BYTES,), "images"),
        **{f"{name}_offset": ("<i8", (), "offsets") for name in (*BLOBS, "person")},
        "joints": ("<f4", (num_keypoints, 3), "people"),
        "box": ("<f4", (4,), "people"),
        "area": ("<f4", (), "people"),
        "annotation_id": ("<i8", (), "people"),
        "sample": ("<i8", (2,), "samples"),
    }


class Store:
    """Reads a store.

    The header is checked and all arrays but the flat ones are held in memory (some 50 MB for the whole of COCO). The
    file is opened anew in every process that reads it, whether forked or spawned; pickling takes the path alone.

    Attributes:
        image_ids: (N,) int64.
        digests: (N, 16) uint8, BLAKE2b of the picture's bytes.
        samples: (S, 2) int64, image row and person row within that image.

    Args:
        skeleton: the one the store must have been built for; None takes the store's own.

    Raises:
        DataError: the file is missing, damaged, no store, or of another schema or skeleton.
    """

    def __init__(self, path: str | Path, skeleton: Skeleton | None = COCO) -> None:
        self.path = Path(path)
        self._handle: tuple[int, h5py.File] | None = None
        with self._reading(), self._open() as file:
            self.skeleton = _check_header(file, skeleton)
            self._columns = _read_columns(file, self.skeleton)
            self.fingerprint = str(file.attrs["fingerprint"])
            if fingerprint(self._columns) != self.fingerprint:
                raise ValueError("its people or its table of pictures are not those that were written")
        self.image_ids = self._columns["image_id"]
        self.digests = self._columns["digest"]
        self.samples = self._columns["sample"]

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
        return len(self._columns["joints"])

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
        """The image in row ``index`` with all its people; ``DataError`` where they are not what was written."""
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        table, people = self._columns, self._slice("person", index)
        with self._reading():
            jpeg, mask_all, mask_miss = self._patiently(index)
            file_name = table["file_name"][index].decode()
        record = Record(self.path, int(self.image_ids[index]), file_name,
                        int(table["height"][index]), int(table["width"][index]), jpeg,
                        table["joints"][people], table["box"][people], table["area"][people],
                        table["annotation_id"][people], mask_all.tobytes(), mask_miss.tobytes())
        if (content_digest(jpeg) != self.digests[index]).any():
            raise record.fault("has other bytes than were written")
        if (content_digest(mask_all, mask_miss, record.joints) != table["label_digest"][index]).any():
            raise record.fault("has other masks or joints than were written")
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

    def _patiently(self, index: int) -> list[np.ndarray]:
        """An image's slices of the flat arrays; a file system that fails for a moment is asked again."""
        for seconds in RETRY_SECONDS:
            try:
                return [self._flat(name)[self._slice(name, index)] for name in BLOBS]
            except OSError:
                self.close()    # the handle may be stale
                time.sleep(seconds)
        return [self._flat(name)[self._slice(name, index)] for name in BLOBS]

    def _slice(self, name: str, index: int) -> slice:
        return slice(*self._columns[f"{name}_offset"][index:index + 2].tolist())

    def _open(self) -> h5py.File:
        with open(self.path, "rb") as raw:
            if raw.read(len(SUPERBLOCKS[0])) not in SUPERBLOCKS:
                raise ValueError("not an HDF5 file of the layout with checksums")
        # Slices of pictures never repeat, so that a chunk cache would only copy.
        return h5py.File(self.path, "r", rdcc_nbytes=0)

    def _flat(self, name: str) -> h5py.Dataset:
        """A flat array, through this process's own handle; the pair of process and file is set at once for threads."""
        process, file = self._handle or (0, None)
        if process != os.getpid():
            if file is not None:
                file.close()  # the forked child's copy of the parent's handle
            file = self._open()
            if file.attrs["fingerprint"] != self.fingerprint:
                file.close()
                raise ValueError("rebuilt while in use")
            self._handle = os.getpid(), file
        return file[name]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"{self.path} does not exist; build it with tools/build_hdf5.py") from error
        except (PermissionError, IsADirectoryError) as error:
            raise DataError(f"cannot read store {self.path}: {os.strerror(error.errno)}") from error
        except (OSError, LookupError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{self.path} cannot be used as a store ({reason}); build it anew with tools/build_hdf5.py"
                            ) from error


def overlap(a: Store, b: Store) -> np.ndarray:
    """(M,) int64, sorted: ids of the images that both stores hold with the same bytes."""
    common, rows_a, rows_b = np.intersect1d(a.image_ids, b.image_ids, return_indices=True)
    return common[(a.digests[rows_a] == b.digests[rows_b]).all(axis=1)]


def content_digest(*parts: np.ndarray) -> np.ndarray:
    """(16,) uint8 BLAKE2b of the bytes of all parts, one after the other."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return np.frombuffer(digest.digest(), np.uint8)


def fingerprint(table: Mapping[str, np.ndarray]) -> str:
    """Hexadecimal digest of all arrays; pictures, masks and joints are in it through the digests of their own."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(set(table) - {*BLOBS, "joints"}):
        digest.update(np.ascontiguousarray(table[name]))
    return digest.hexdigest()


def describe(skeleton: Skeleton) -> str:
    """The skeleton as a store's attribute, JSON."""
    return json.dumps({"keypoints": skeleton.keypoints, "derived": skeleton.derived, "parts": skeleton.parts,
                       "table": skeleton_to_table(skeleton)})


def _check_header(file: h5py.File, skeleton: Skeleton | None) -> Skeleton:
    """The skeleton that the joints follow, which is the one given."""
    if file.attrs.get("format") != FORMAT:
        raise ValueError("not written by tools/build_hdf5.py, or never finished")
    if (schema := int(file.attrs["schema"])) > SCHEMA:
        raise DataError(f"{file.filename} has schema {schema}, this program reads up to {SCHEMA}; update posenet")
    if schema < SCHEMA:
        raise ValueError(f"schema {schema} is no longer read")
    stored = json.loads(file.attrs["skeleton"])
    if skeleton is None:
        # The first stores, all of the built-in skeleton, did not hold the whole of it.
        skeleton = skeleton_from_table(stored["table"]) if "table" in stored else COCO
    wanted = json.loads(describe(skeleton))
    if any(stored[key] != wanted[key] for key in ("keypoints", "derived")):
        raise ValueError(f"built for another skeleton than model.skeleton, with the keypoints "
                         f"{', '.join(stored['keypoints'])}")
    return skeleton


def _read_columns(file: h5py.File, skeleton: Skeleton) -> dict[str, np.ndarray]:
    """All arrays but the flat ones, checked against each other."""
    rows = {key: int(file.attrs[key]) for key in ("images", "people", "samples")}
    rows["offsets"] = rows["images"] + 1
    kinds = columns(skeleton.num_keypoints)
    datasets = {name: _dataset(file, name, dtype) for name, (dtype, *_) in kinds.items()}
    for name, (_, shape, counted) in kinds.items():
        if datasets[name].shape != (rows[counted], *shape):
            raise ValueError(f"{name} has the shape {datasets[name].shape}")
    blobs = {name: _dataset(file, name, "u1") for name in BLOBS}
    claimed = sum(dataset.nbytes for dataset in (*datasets.values(), *blobs.values()))
    if claimed > os.path.getsize(file.filename):
        raise ValueError(f"its arrays claim {claimed} bytes, more than the file has")
    table = {name: dataset[:] for name, dataset in datasets.items()}
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
    height, width = table["height"].astype(np.int64), table["width"].astype(np.int64)
    if min(height.min(), width.min()) <= 0 or (height * width).max() > MAX_PIXELS:
        raise ValueError("pictures without a size, or of an absurd one")
    if not all(np.isfinite(table[name]).all() for name in ("joints", "box", "area")):
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
