"""The store: one HDF5 file with the images of a data set, their people and their masks.

Layout. No array is compressed or in chunks, so a record is read by two reads at known offsets of the file.

- ``images``: the original bytes of the image files, of any format that OpenCV reads, one after the other.
- ``labels``: for every image its joints ((P, K, 3) float32: x, y, visibility), then the run lengths of the person mask,
  which the file calls ``mask_all``, and of ``mask_miss``; see ``Record``.
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
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, get_type_hints

import h5py
import numpy as np

from posenet.errors import DataError
from posenet.files import (
    atomic_replacement,
    check_outputs,
    is_standard_output,
    open_input,
    output_lock,
    remove_leftovers,
    resolve_link,
)
from posenet.images import check_image, decode_checked_image, is_jpeg
from posenet.progress_bar import progress_bar
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from posenet.threads import map_in_threads, usable_cores

FORMAT = "posenet store"
"""Value of the attribute ``format`` of every store."""
SCHEMA = 7
"""Value of the attribute ``schema`` of stores with ``original``, the version of the layout."""
SCHEMA_WITHOUT_ORIGINAL = 6
"""That of other stores, the oldest that is read."""
NO_PERSON = -1
"""Person of the sample of an image without annotations."""
JPEG_QUALITY = 95
"""Of images that are made smaller."""
QUARTILES = {"minimum": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "maximum": 1.0}
"""The columns of sizes in the statistics of a store; lower and upper are quartiles."""


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
    hints = get_type_hints(row, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()])


RECORD_TYPE = _type_of(RecordRow)
ORIGINAL_TYPE = _type_of(OriginalRow)
PERSON_TYPE = np.dtype([("annotation_id", "<i8"), ("box", "<f4", (4,)), ("area", "<f4")])
TABLES = ("record", "file_name", "person", "sample")
"""The arrays that are kept in memory while a store is open: about 20 MB for all of COCO."""
_seek_lock = threading.Lock()
_SIGNATURES = (b"\x89HDF\r\n\x1a\n\x02", b"\x89HDF\r\n\x1a\n\x03")
"""How HDF5 files begin whose structures have checksums. Reading others that are damaged may never end."""


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
        """Whether decoding at a reduced size is faster, and keeps the upper left corner where it is.

        The last row and column of a reduced JPEG, which a rotation may move there, may lie partly outside the image.
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
    for table in tables.values():  # in this order
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


def make_image_keys(sizes: np.ndarray, checksums: np.ndarray) -> np.ndarray:
    """(N,) uint64, different for different image files: from their sizes in bytes and their CRC-32, both (N,)."""
    return sizes.astype(np.uint64) << np.uint64(32) | checksums.astype(np.uint64)


class Store:
    """A store that is open for reading, until it is closed or nothing refers to it any more.

    Forked processes share the open file, which is read as it was if another one replaces it. Unpickling opens it again.

    Args:
        skeleton: the skeleton that the store must have been built for; None accepts any.

    Attributes:
        path, skeleton, fingerprint: of the store.
        num_images, num_people: their numbers; ``len(store)`` is the number of samples.
        num_image_bytes, num_file_bytes: size of all stored images together, and of the file.
        max_side: images with a longer side than this were made smaller; 0 if all are stored as they are.
        records: (N,) of ``RECORD_TYPE``; ``people``: (num_people,) of ``PERSON_TYPE``.
        image_ids: (N,) int64.
        image_keys: (N,) uint64, different for images with different bytes: of the files that were stored.
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
            self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.num_images = len(self.records)
        self.num_people = len(self.people)
        self.image_ids = np.ascontiguousarray(self.records["image_id"])
        self.num_image_bytes = int(self.records["image_bytes"].sum())

    def _read_tables(self, file: h5py.File, skeleton: Skeleton | None) -> None:
        if file.attrs.get("format") != FORMAT.encode():
            raise ValueError("not written by posenet build-hdf5, or never finished")
        schema = int(file.attrs["schema"])
        if schema not in (SCHEMA, SCHEMA_WITHOUT_ORIGINAL):
            raise DataError(
                f"{self.path} has schema {schema} of another version of posenet; build it again, or update posenet: "
                f"posenet build-hdf5 --images DIR --annotations JSON --output {self.path} --overwrite"
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
        files = tables.get("original", self.records)
        self.image_keys = make_image_keys(files["image_bytes"], files["image_crc"])
        self._file_names = tables["file_name"]
        self.people = tables["person"]
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

        Without ``with_image``, the bytes of the image are neither read nor checked; the record has none.
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
            people=self.people[row.first_person : row.first_person + row.num_people],
        )
        if (with_image and zlib.crc32(image) != row.image_crc) or zlib.crc32(labels) != row.label_crc:
            raise record.damage_error("is damaged: its image, masks or joints do not match the checksum")
        return record

    def _read(self, offset: int, size: int) -> bytes:
        if not self.close.alive:  # the descriptor may be another file's
            raise DataError(f"{self.path} is closed; open it again")
        with self._data_errors():
            if hasattr(os, "pread"):
                data = os.pread(self._descriptor, size, offset)
            else:
                with _seek_lock:  # Windows
                    os.lseek(self._descriptor, offset, os.SEEK_SET)
                    data = os.read(self._descriptor, size)
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


def _open_again(path: Path, skeleton: Skeleton, fingerprint: str) -> Store:
    store = Store(path, skeleton)
    if store.fingerprint != fingerprint:
        raise DataError(f"{path} was rebuilt while in use; start again")
    return store


def missing_store(path: str | Path) -> DataError:
    return DataError(f"{Path(path).absolute()} does not exist; build it with posenet build-hdf5, or correct the path")


@contextlib.contextmanager
def open_store_writer(
    path: str | Path,
    num_image_bytes: int,
    skeleton: Skeleton = COCO,
    source: str | Path = "",
    overwrite: bool = False,
    max_side: int = 0,
) -> Iterator[StoreWriter]:
    """Write a store under a temporary name, and rename it at the end of the block.

    On any exception, Ctrl-C included, the unfinished file is removed and an existing store stays unchanged. What killed
    builds have left is removed by the next build of the same store.

    Args:
        num_image_bytes: total size of the image files that will be added, or more.
        source: path of the annotation file. Its name is stored, but not used.
        max_side: not 0 if images with a longer side were made smaller.
    """
    path = resolve_link(Path(path))
    check_store_output(path, overwrite)
    try:
        with output_lock(path):
            remove_leftovers(path)
            with (
                atomic_replacement(path) as unfinished,
                tempfile.TemporaryFile(dir=path.parent) as waiting,
                _create_hdf5(unfinished) as file,
            ):
                writer = StoreWriter(path, file, num_image_bytes, max_side, waiting)
                yield writer
                writer.write_tables(skeleton, Path(source).name)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise DataError(f"cannot write {path}: {reason}; free disk space, or choose another folder") from error


@contextlib.contextmanager
def _create_hdf5(path: Path) -> Iterator[h5py.File]:
    """Create an HDF5 file, and close it at the end of the block.

    Closing writes once more. Where that fails, as after a full disk, HDF5 crashes when the program ends; so after an
    error the open file writes to the null device.
    """
    file = h5py.File(path, "w", libver=("v110", "v110"), locking=False)  # older layouts lack checksums
    try:
        yield file
        file.flush()
        file.close()
    except BaseException:
        if file:  # it is open
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, file.id.get_vfd_handle(), inheritable=False)
            os.close(null)
        with contextlib.suppress(Exception):  # the null device cannot be extended
            file.close()
        raise


class StoreWriter:
    """Appends images to the unfinished store ``file``, which will be called ``path``.

    An array cannot shrink, and the size of all images that are made smaller is known at the end. Until then, the bytes
    of their store are in the file ``waiting``.
    """

    def __init__(self, path: Path, file: h5py.File, num_image_bytes: int, max_side: int, waiting: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._max_side = max_side
        self._waiting = waiting
        self._images = None if max_side else file.create_dataset("images", num_image_bytes, np.uint8)
        self._records: list[RecordRow] = []
        self._originals: list[OriginalRow] = []
        self._file_names: list[bytes] = []
        self._people: list[np.ndarray] = []
        self._samples: list[tuple[int, int]] = []
        self._labels: list[bytes] = []
        self._image_end = 0
        self._label_end = 0
        self._num_people = 0

    def add(self, record: Record, main_rows: Sequence[int], original: OriginalRow | None = None) -> None:
        """Append an image with its people, the rows of its main persons or ``NO_PERSON``, and the file that it was."""
        arrays = (record.joints.astype("<f4"), record.person_mask.astype("<u2"), record.mask_miss.astype("<u2"))
        labels = b"".join(array.tobytes() for array in arrays)
        row = RecordRow(
            image_id=record.image_id,
            height=record.height,
            width=record.width,
            orientation=record.orientation,
            num_people=len(record.people),
            first_person=self._num_people,
            image_start=self._image_end,
            image_bytes=len(record.image_bytes),
            image_crc=zlib.crc32(record.image_bytes.data),
            label_crc=zlib.crc32(labels),
            label_start=self._label_end,
            mask_all_bytes=record.person_mask.nbytes,
            mask_miss_bytes=record.mask_miss.nbytes,
        )
        self._image_end += row.image_bytes
        self._label_end += len(labels)
        self._num_people += row.num_people
        if self._images is None:
            self._waiting.write(record.image_bytes.data)
        elif self._image_end > len(self._images):
            raise DataError(f"{record.source} has grown while the store was built; build it again")
        else:
            self._images[row.image_start : self._image_end] = record.image_bytes
        self._samples += [(len(self._records), person) for person in main_rows]
        self._records.append(row)
        self._originals.append(original or OriginalRow(row.image_bytes, row.image_crc, row.orientation))
        self._file_names.append(record.file_name.encode(errors="surrogateescape"))
        self._people.append(record.people)
        self._labels.append(labels)

    def write_tables(self, skeleton: Skeleton, source: str) -> None:
        if not self._records:
            raise DataError(
                f"nothing to write to {self.path}: no readable image with a main {skeleton.category}; "
                "check the annotations and the image folder"
            )
        if self._images is None:
            self._waiting.flush()
            self._file.create_dataset("images", data=np.memmap(self._waiting, np.uint8, "r"))
        self._file.create_dataset("labels", data=np.frombuffer(b"".join(self._labels), np.uint8))
        tables = {
            "record": np.array(self._records, RECORD_TYPE),
            "file_name": np.array(self._file_names),
            "person": np.concatenate(self._people),
            "sample": np.array(self._samples, "<i8").reshape(-1, 2),
        }
        numbers = {"schema": SCHEMA_WITHOUT_ORIGINAL}
        if self._max_side:
            tables["original"] = np.array(self._originals, ORIGINAL_TYPE)
            numbers = {"schema": SCHEMA, "max_side": self._max_side, "jpeg_quality": JPEG_QUALITY}
        numbers |= {"images": len(self._records), "people": self._num_people, "samples": len(self._samples)}
        skeleton_text = json.dumps(skeleton_to_table(skeleton))
        texts = {
            "format": FORMAT,
            "skeleton": skeleton_text,
            "source": source or "unknown",
            "fingerprint": compute_fingerprint(skeleton_text, tables),
        }
        for name, table in tables.items():
            self._file.create_dataset(name, data=table)
        for name, text in texts.items():  # HDF5's checksums protect text of fixed length only
            self._file.attrs[name] = np.bytes_(text.encode(errors="replace"))
        self._file.attrs.update(numbers)


def check_store_output(path: Path, overwrite: bool, inputs: Iterable[str | Path] = ()) -> None:
    """Make the folder of a store; ``DataError`` if it may not be written to ``path``."""
    if is_standard_output(path):
        raise DataError("a store cannot be written to standard output; give the name of a file")
    check_outputs([path], inputs, overwrite=overwrite)
    if path.is_file() and not h5py.is_hdf5(path):
        raise DataError(f"{path} is not an HDF5 file and is not overwritten; choose another output")


def verify_store(store: Store, *, workers: int | None = None) -> None:
    """Read a whole store on ``workers`` threads (None: one per usable core), and decode every image.

    ``DataError``, which counts the damaged images and names the first, if there are any.
    """

    def find_damage(row: int) -> str | None:
        try:
            record = store.read_record(row)
            header = check_image(record.image_bytes)
            size = header.displayed_size if record.orientation == header.orientation else header.stored_size
            if size != (record.height, record.width):
                raise record.damage_error("has another size than its record")
        except (DataError, ValueError) as error:
            return str(error)
        return None

    workers = workers or usable_cores()
    rows = range(store.num_images)
    with contextlib.closing(map_in_threads(find_damage, rows, workers=workers, ahead=4 * workers)) as results:
        damages = [damage for damage in progress_bar(results, "verify", len(rows)) if damage is not None]
    if damages:
        raise DataError(f"{len(damages)} of {store.num_images} images are damaged; first: {damages[0]}")


def compute_statistics(store: Store) -> Iterator[str]:
    """Yield lines with quartiles of sizes, and how many people have each keypoint; ``DataError`` if it is damaged."""
    rows = progress_bar(range(store.num_images), "statistics", leave=False)
    visibilities = [store.read_record(row, with_image=False).joints[..., 2] for row in rows]
    images, mains = store.samples[store.samples[:, 1] != NO_PERSON].T
    main_heights = store.people["box"][store.records["first_person"][images] + mains, 3]
    quantities = {
        "width, pixels": store.records["width"],
        "height, pixels": store.records["height"],
        "file, kB": store.records["image_bytes"] / 1000,
        f"{store.skeleton.people} in an image": store.records["num_people"],
        f"main {store.skeleton.category}'s height, pixels": main_heights,
    }
    width = max(map(len, [*quantities, *store.skeleton.keypoints])) + 2
    yield " " * width + "".join(f"{name:>10}" for name in QUARTILES)
    for name, values in quantities.items():
        if len(values):
            quartiles = np.quantile(values, list(QUARTILES.values()))
            cells = (f"{value:>10.0f}" if value >= 100 else f"{value:>10.3g}" for value in quartiles)
            yield f"{name:<{width}}" + "".join(cells)
    if not store.num_people:
        return
    for name, values in zip(store.skeleton.keypoints, np.concatenate(visibilities).T):  # values: (people,)
        visible = (values == 2).sum() / max((values > 0).sum(), 1)
        yield f"{name:<{width}}{(values > 0).mean():>10.1%} labelled, {visible:.1%} of these visible"
