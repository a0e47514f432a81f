"""The store: one HDF5 file with the images of a data set, their people and their masks.

Layout. No array is compressed or in chunks, so a record is read by two reads at known offsets of the file.

- ``images``: the original bytes of the image files, of any format that OpenCV reads, one after the other.
- ``labels``: for every image its joints ((P, K, 3) float32: x, y, visibility), then the stored run lengths of the
  person mask and of ``mask_miss``; see ``Record``. The file calls the person mask ``mask_all``.
- ``record``: one row for every image, of type ``RECORD_TYPE``; ``file_name``: the names of the image files.
- ``person``: one row for every person, of type ``PERSON_TYPE``, in the order of the images.
- ``sample``: one row for every main person: the row of the image and that of the person within the image. An image
  without annotations has no people, a ``mask_miss`` of zeros, and one sample with the person ``NO_PERSON``. A
  *background* image, which shows nobody, has no people, a ``mask_miss`` of ones, and no sample.
- ``original``, only in stores whose attribute ``max_side`` is not 0: one row for every image, of type
  ``ORIGINAL_TYPE``. Their images of more than ``max_side`` pixels were made smaller and encoded again.

Sizes are (height, width) in pixels. They and coordinates are those of the image after its decoded pixels are turned by
the orientation in ``record``: that of EXIF, or 1 in stores of version 0.6 that were annotated in the stored pixels.

Integrity. The structures of HDF5 have checksums (in the layout of HDF5 1.10), which the library verifies. ``record``
contains a CRC-32 of the image and one of the labels, verified whenever they are read. The attribute ``fingerprint`` is
a SHA-256 of the skeleton and of all arrays but ``images`` and ``labels``, verified when the store is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import h5py
import numpy as np

from posenet.errors import DataError
from posenet.files import open_input
from posenet.images import decode_checked_image, is_jpeg
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table

FORMAT = "posenet store"
"""Value of the attribute ``format`` of every store."""
SCHEMA = 7
"""Value of the attribute ``schema`` of stores with ``original``, the version of the layout."""
SCHEMA_WITHOUT_ORIGINAL = 6
"""That of other stores, the oldest that is read."""
NO_PERSON = -1
"""Person of the sample of an image without annotations."""


class RecordRow(NamedTuple):
    """A row of ``record``: an image, and where its people, its bytes and its labels are."""

    image_id: Annotated[int, "<i8"]
    height: Annotated[int, "<i4"]
    width: Annotated[int, "<i4"]
    orientation: Annotated[int, "<i4"]
    num_people: Annotated[int, "<i4"]
    first_person: Annotated[int, "<i8"]
    image_start: Annotated[int, "<i8"]
    image_bytes: Annotated[int, "<i8"]
    image_crc: Annotated[int, "<u4"]
    label_crc: Annotated[int, "<u4"]
    label_start: Annotated[int, "<i8"]
    mask_all_bytes: Annotated[int, "<i4"]
    mask_miss_bytes: Annotated[int, "<i4"]


class OriginalRow(NamedTuple):
    """A row of ``original``: the image file before it was made smaller, or as it is stored."""

    image_bytes: Annotated[int, "<i8"]
    image_crc: Annotated[int, "<u4"]
    orientation: Annotated[int, "<i4"]


def _type_of(row: type) -> np.dtype[np.void]:
    """The type of an array with such rows."""
    hints = get_type_hints(row, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()])


RECORD_TYPE = _type_of(RecordRow)
ORIGINAL_TYPE = _type_of(OriginalRow)
PERSON_TYPE = np.dtype([("annotation_id", "<i8"), ("box", "<f4", (4,)), ("area", "<f4")])
TABLES = ("record", "file_name", "person", "sample")
"""The arrays that are kept in memory while a store is open: about 20 MB for all of COCO."""
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_SIGNATURES = (b"\x89HDF\r\n\x1a\n\x02", b"\x89HDF\r\n\x1a\n\x03")
"""First bytes of HDF5 files with checksums of their structures. Reading others that are damaged may never end."""


class Record(NamedTuple):
    """One image and its P people. Sizes and coordinates are pixels of the upright image.

    Two masks go with every image, here and in samples and batches:

    - the *person mask* is 1 on people, crowds included;
    - ``mask_miss``, a name of the literature, is 1 where the loss supervises. It is 0 on crowds and on people without
      labelled keypoints, and everywhere in an image without annotations.
    """

    source: Path  # of the store, for error messages
    image_id: int
    file_name: str
    height: int
    width: int
    orientation: int  # the EXIF orientation, 1-8, by which the decoded pixels are turned
    image_bytes: np.ndarray  # (bytes,) uint8, the original bytes of the image file
    joints: np.ndarray  # (P, K, 3) float32: x, y, visibility of every keypoint
    person_mask: np.ndarray  # (runs,) uint16: run lengths, the first of background
    mask_miss: np.ndarray  # (runs,) uint16: run lengths
    people: np.ndarray  # (P,) of ``PERSON_TYPE``
    # (2, C) uint8: 1 for the channels that it supervises, as annotated and for a mirrored image; None means all.
    supervised: np.ndarray | None = None

    def allows_reduction(self, reduction: int) -> bool:
        """Whether decoding at a reduced size is faster, and the result has the same upper left corner as the image.

        The last row and column of a reduced JPEG may lie partly outside the image. A rotation may move them to the
        upper left.
        """
        is_exact = self.height % reduction == 0 and self.width % reduction == 0
        return is_jpeg(self.image_bytes) and (self.orientation == 1 or is_exact)

    def decode_image(self, reduction: int = 1) -> np.ndarray:
        """Decode the image to (H, W, 3) BGR uint8; see ``decode_checked_image``. ``DataError`` if that fails."""
        try:
            return decode_checked_image(self.image_bytes, self.height, self.width, reduction, self.orientation)
        except ValueError as error:
            raise self.damage_error(str(error)) from error

    @property
    def is_annotated(self) -> bool:
        """Whether the loss supervises the image, also one that shows nobody."""
        return len(self.joints) > 0 or bool(self.mask_miss[1::2].any())

    def damage_error(self, problem: str) -> DataError:
        """An error that names the store and the image."""
        return DataError(
            f"{self.source}: image {self.image_id} ({self.file_name}) {problem}; "
            "restore the image and rebuild the store"
        )


def compute_fingerprint(skeleton: str, tables: Mapping[str, np.ndarray]) -> str:
    """SHA-256, in hexadecimal, of the attribute ``skeleton``, all ``TABLES``, and ``original`` if there is one."""
    digest = hashlib.sha256(skeleton.encode())
    for name in (*TABLES, *(["original"] if "original" in tables else [])):
        digest.update(np.ascontiguousarray(tables[name]).tobytes())
    return digest.hexdigest()


def make_image_keys(sizes: np.ndarray, checksums: np.ndarray) -> np.ndarray:
    """(N,) uint64, different for different image files: from their sizes in bytes and their CRC-32, both (N,)."""
    return sizes.astype(np.uint64) << np.uint64(32) | checksums.astype(np.uint64)


class Store:
    """A store that is open for reading, until it is closed or nothing refers to it any more.

    Processes that are forked share the open file; in others, unpickling opens it again. A file that is replaced in the
    meantime is still read by those that have it open.

    Args:
        skeleton: the skeleton that the store must have been built for; None accepts any.

    Attributes:
        path, skeleton, fingerprint: of the store.
        num_images, num_people: their numbers; ``len(store)`` is the number of samples.
        num_image_bytes, num_file_bytes: size of all stored images together, and of the file.
        max_side: images with a longer side than this were made smaller; 0 if all are stored as they are.
        records: (N,) of ``RECORD_TYPE``.
        originals: (N,) of ``ORIGINAL_TYPE``: the image files that were stored.
        image_ids: (N,) int64.
        image_keys: (N,) uint64, different for images with different bytes: the size and the CRC-32 of the file.
        samples: (S, 2) int64: row of the image, and row of the main person within that image.

    Raises:
        DataError: the file is missing, damaged, not a store, or has another schema or skeleton.
    """

    def __init__(self, path: str | Path, skeleton: Skeleton | None = None) -> None:
        self.path = Path(path)
        with self._data_errors():
            with open_input(self.path) as raw:
                if raw.read(len(_SIGNATURES[0])) not in _SIGNATURES:
                    raise ValueError("not an HDF5 file of the layout with checksums")
            # Stores never change, and not every file system has the locks that HDF5 takes.
            with h5py.File(self.path, "r", locking=False) as file:
                self._read_tables(file, skeleton)
            self._descriptor = os.open(self.path, _READ_FLAGS)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.num_images = len(self.records)
        self.num_people = len(self._people)
        self.image_ids = np.ascontiguousarray(self.records["image_id"])
        self.num_image_bytes = int(self.records["image_bytes"].sum())
        self.image_keys = make_image_keys(self.originals["image_bytes"], self.originals["image_crc"])

    def _read_tables(self, file: h5py.File, skeleton: Skeleton | None) -> None:
        if file.attrs.get("format") != FORMAT.encode():
            raise ValueError("not written by posenet build-hdf5, or never finished")
        schema = int(file.attrs["schema"])
        if schema not in (SCHEMA, SCHEMA_WITHOUT_ORIGINAL):
            raise DataError(
                f"{self.path} has schema {schema} of {'a later' if schema > SCHEMA else 'an earlier'} version; "
                f"{'update posenet, or ' if schema > SCHEMA else ''}build it again: posenet build-hdf5 --images DIR "
                f"--annotations JSON --output {self.path} --overwrite"
            )
        text = file.attrs["skeleton"].decode()
        self.fingerprint = file.attrs["fingerprint"].decode()
        self.num_file_bytes = self.path.stat().st_size
        names = TABLES if schema == SCHEMA_WITHOUT_ORIGINAL else (*TABLES, "original")
        for name in ("images", "labels", *names):
            if file[name].nbytes > self.num_file_bytes:
                raise ValueError(f"its array {name} is larger than the file")
        tables = {name: file[name][()] for name in names}
        if compute_fingerprint(text, tables) != self.fingerprint:
            raise ValueError("its tables do not match its fingerprint")
        own = skeleton_from_table(json.loads(text))
        self.max_side = int(file.attrs.get("max_side", 0))
        self.records = tables["record"]
        self.originals = tables.get("original", self.records[list(OriginalRow._fields)].astype(ORIGINAL_TYPE))
        self._file_names = tables["file_name"]
        self._people = tables["person"]
        self.samples = tables["sample"]
        self._images_offset = file["images"].id.get_offset() or 0
        self._labels_offset = file["labels"].id.get_offset() or 0
        if skeleton is not None and (own.keypoints, own.derived) != (skeleton.keypoints, skeleton.derived):
            raise DataError(
                f"{self.path} was built for another skeleton than model.skeleton, with the keypoints "
                f"{', '.join(own.keypoints)}; set model.skeleton to that one, or list the stores as data sets: "
                'data.train = [{path = "a.h5"}, {path = "b.h5"}]'
            )
        self.skeleton = skeleton or own

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path, self.skeleton, self.fingerprint)

    def __len__(self) -> int:
        """Number of samples: one for every main person, or image without annotations."""
        return len(self.samples)

    def read_record(self, index: int, *, with_image: bool = True) -> Record:
        """Read the image in a row with all its people; ``DataError`` if the file is damaged.

        Without ``with_image``, the bytes of the image are neither read nor checked: there are none in the record.
        """
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        row = RecordRow(*self.records[index].tolist())
        num_keypoints = self.skeleton.num_keypoints
        joint_bytes = 12 * num_keypoints * row.num_people
        label_bytes = joint_bytes + row.mask_all_bytes + row.mask_miss_bytes
        image = self._read(self._images_offset + row.image_start, row.image_bytes) if with_image else b""
        labels = self._read(self._labels_offset + row.label_start, label_bytes)
        joints = np.frombuffer(labels, "<f4", joint_bytes // 4).reshape(row.num_people, num_keypoints, 3)
        masks = np.frombuffer(labels, "<u2", offset=joint_bytes)
        record = Record(
            source=self.path,
            image_id=row.image_id,
            file_name=self._file_names[index].decode(errors="surrogateescape"),
            height=row.height,
            width=row.width,
            orientation=row.orientation,
            image_bytes=np.frombuffer(image, np.uint8),
            joints=joints,
            person_mask=masks[: row.mask_all_bytes // 2],
            mask_miss=masks[row.mask_all_bytes // 2 :],
            people=self._people[row.first_person : row.first_person + row.num_people],
        )
        is_whole = not with_image or zlib.crc32(image) == row.image_crc
        if not is_whole or zlib.crc32(labels) != row.label_crc:
            raise record.damage_error("is damaged: its image, masks or joints do not match the checksum")
        return record

    def _read(self, offset: int, size: int) -> bytes:
        """Read bytes of the file; ``DataError`` if that fails, or the file ends early."""
        if not self.close.alive:
            raise DataError(f"{self.path} is closed; open it again")
        with self._data_errors():
            data = _read_at(self._descriptor, size, offset)
            if len(data) < size:
                raise OSError("the file ends early")
            return data

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _data_errors(self) -> Iterator[None]:
        """Turn the errors of h5py and of the file system into one line."""
        try:
            yield
        except FileNotFoundError as error:
            raise missing_store(self.path) from error
        except DataError:
            raise
        except Exception as error:  # h5py raises many kinds on damaged files
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise DataError(
                f"{self.path} cannot be used as a store ({reason}); rebuild it with posenet build-hdf5"
            ) from error


def _open_again(path: Path, skeleton: Skeleton, expected: str) -> Store:
    """Open a store that was pickled; ``DataError`` if it has been rebuilt in the meantime."""
    store = Store(path, skeleton)
    if store.fingerprint != expected:
        raise DataError(f"{path} was rebuilt while in use; start again")
    return store


_seek_lock = threading.Lock()


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _seek_lock:  # Windows
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def missing_store(path: str | Path) -> DataError:
    """The error for a store that does not exist."""
    return DataError(f"{Path(path).absolute()} does not exist; build it with posenet build-hdf5, or correct the path")
