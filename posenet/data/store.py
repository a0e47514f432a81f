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
from typing import IO, Any, NamedTuple

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


RECORD_TYPE = np.dtype(
    [
        ("image_id", "<i8"),
        ("height", "<i4"),
        ("width", "<i4"),
        ("orientation", "<i4"),
        ("num_people", "<i4"),
        ("first_person", "<i8"),
        ("image_start", "<i8"),
        ("image_bytes", "<i8"),
        ("image_crc", "<u4"),
        ("label_crc", "<u4"),
        ("label_start", "<i8"),
        ("mask_all_bytes", "<i4"),
        ("mask_miss_bytes", "<i4"),
    ]
)
"""A row of ``record``: an image, and where its people, its bytes and its labels are."""
ORIGINAL_TYPE = np.dtype([("image_bytes", "<i8"), ("image_crc", "<u4"), ("orientation", "<i4")])
"""A row of ``original``: the image file before it was made smaller, or as it is stored."""
PERSON_TYPE = np.dtype([("annotation_id", "<i8"), ("box", "<f4", (4,)), ("area", "<f4")])
TABLES = ("record", "file_name", "person", "sample")
"""The arrays that are kept in memory while a store is open: about 20 MB for all of COCO."""
_seek_lock = threading.Lock()  # for systems without ``os.pread``
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
    """(N,) uint64, equal for equal image files: their sizes in bytes and their CRC-32, both (N,)."""
    return sizes.astype(np.uint64) << np.uint64(32) | checksums.astype(np.uint64)


class Store(contextlib.AbstractContextManager["Store"]):
    """A store that is open for reading, until it is closed or nothing refers to it any more.

    Forked processes share the open file, which is read as it was if another one replaces it. Unpickling opens it again.

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
        DataError: the file is missing, damaged, not a store, or has another schema.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._data_errors():
            self._file = open_input(self.path)
            self.close = weakref.finalize(self, self._file.close)
            if self._file.read(len(_SIGNATURES[0])) not in _SIGNATURES:
                raise ValueError("not an HDF5 file of the layout with checksums")
            # Stores never change, and not every file system has the locks that HDF5 takes.
            with h5py.File(self.path, "r", locking=False) as file:
                self._read_tables(file)
        self.num_images = len(self.records)
        self.num_people = len(self.people)
        self.image_ids = np.ascontiguousarray(self.records["image_id"])
        self.num_image_bytes = int(self.records["image_bytes"].sum())

    def _read_tables(self, file: h5py.File) -> None:
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
        self.skeleton = skeleton_from_table(json.loads(text))
        self.max_side = int(file.attrs.get("max_side", 0))
        self.records = tables["record"]
        files = tables.get("original", self.records)
        self.image_keys = make_image_keys(files["image_bytes"], files["image_crc"])
        self._file_names = tables["file_name"]
        self.people = tables["person"]
        self.samples = tables["sample"]
        self._images_offset = file["images"].id.get_offset() or 0
        self._labels_offset = file["labels"].id.get_offset() or 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path, self.fingerprint)

    def __len__(self) -> int:
        """Number of samples: one for every main person, or image without annotations."""
        return len(self.samples)

    def read_record(self, index: int, *, with_image: bool = True) -> Record:
        """Read the image in a row with all its people; ``DataError`` if the file is damaged.

        Without ``with_image``, the bytes of the image are neither read nor checked; the record has none.
        """
        if not 0 <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        row = dict(zip(RECORD_TYPE.fields or (), self.records[index].tolist()))
        num_keypoints, num_people = self.skeleton.num_keypoints, row["num_people"]
        joint_bytes = 12 * num_keypoints * num_people
        label_bytes = joint_bytes + row["mask_all_bytes"] + row["mask_miss_bytes"]
        image = self._read(self._images_offset + row["image_start"], row["image_bytes"]) if with_image else b""
        labels = self._read(self._labels_offset + row["label_start"], label_bytes)
        joints = np.frombuffer(labels, "<f4", joint_bytes // 4).reshape(num_people, num_keypoints, 3)
        masks = np.frombuffer(labels, "<u2", offset=joint_bytes)
        record = Record(
            source=self.path,
            file_name=self._file_names[index].decode(errors="surrogateescape"),
            **{name: row[name] for name in ("image_id", "height", "width", "orientation")},
            image_bytes=np.frombuffer(image, np.uint8),
            joints=joints,
            person_mask=masks[: row["mask_all_bytes"] // 2],
            mask_miss=masks[row["mask_all_bytes"] // 2 :],
            people=self.people[row["first_person"] : row["first_person"] + num_people],
        )
        if (with_image and zlib.crc32(image) != row["image_crc"]) or zlib.crc32(labels) != row["label_crc"]:
            raise record.damage_error("is damaged: its image, masks or joints do not match the checksum")
        return record

    def _read(self, offset: int, size: int) -> bytes:
        with self._data_errors():
            if hasattr(os, "pread"):
                data = os.pread(self._file.fileno(), size, offset)
            else:
                with _seek_lock:
                    self._file.seek(offset)
                    data = self._file.read(size)
            if len(data) < size:
                raise OSError("the file ends early")
            return data

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


def _open_again(path: Path, fingerprint: str) -> Store:
    store = Store(path)
    if store.fingerprint != fingerprint:
        raise DataError(f"{path} was rebuilt while in use; start again")
    return store


def missing_store(path: str | Path) -> DataError:
    return DataError(f"{Path(path).absolute()} does not exist; build it with posenet build-hdf5, or correct the path")


class NewImage(NamedTuple):
    """An image for a store."""

    record: Record
    main_rows: Sequence[int]  # the rows of its main persons among its people, or ``NO_PERSON``
    original: tuple[int, int, int] | None = None  # its file, of ``ORIGINAL_TYPE``, if the record has another one


def write_store(
    path: str | Path,
    images: Iterable[NewImage],
    num_image_bytes: int,
    skeleton: Skeleton = COCO,
    source: str | Path = "",
    overwrite: bool = False,
    max_side: int = 0,
) -> None:
    """Write a store under a temporary name, and rename it when it is complete.

    On any exception, Ctrl-C included, the unfinished file is removed and an existing store stays unchanged. What killed
    builds have left is removed by the next build of the same store.

    Args:
        num_image_bytes: total size of the image files, or more.
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
                # An array cannot shrink. The size of all images that are made smaller is known at the end; until then,
                # their bytes wait in a file.
                array = None if max_side else file.create_dataset("images", num_image_bytes, np.uint8)
                tables, labels = _write_images(images, array, waiting, max_side)
                if not len(tables["record"]):
                    raise DataError(
                        f"nothing to write to {path}: no readable image with a main {skeleton.category}; "
                        "check the annotations and the image folder"
                    )
                if array is None:
                    waiting.flush()
                    file.create_dataset("images", data=np.memmap(waiting, np.uint8, "r"))
                file.create_dataset("labels", data=np.frombuffer(labels, np.uint8))
                _write_tables(file, tables, skeleton, Path(source).name, max_side)
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


def _write_images(
    images: Iterable[NewImage], array: h5py.Dataset | None, waiting: IO[bytes], max_side: int
) -> tuple[dict[str, np.ndarray], bytes]:
    """Write the bytes of the images to ``array``, or without one to ``waiting``; return the tables and the labels."""
    rows: list[tuple[int, ...]] = []  # of ``RECORD_TYPE``
    originals: list[tuple[int, ...]] = []  # of ``ORIGINAL_TYPE``
    people: list[np.ndarray] = [np.zeros(0, PERSON_TYPE)]
    samples: list[tuple[int, int]] = []
    file_names: list[bytes] = []
    labels = bytearray()
    image_start = num_people = 0
    for record, main_rows, original in images:
        arrays = (record.joints.astype("<f4"), record.person_mask.astype("<u2"), record.mask_miss.astype("<u2"))
        of_image = b"".join(array.tobytes() for array in arrays)
        size, checksum = len(record.image_bytes), zlib.crc32(record.image_bytes.data)
        if array is None:
            waiting.write(record.image_bytes.data)
        elif image_start + size > len(array):
            raise DataError(f"{record.source} has grown while the store was built; build it again")
        else:
            array[image_start : image_start + size] = record.image_bytes
        samples += [(len(rows), person) for person in main_rows]
        shape = (record.image_id, record.height, record.width, record.orientation)
        of_people = (len(record.people), num_people)
        of_masks = (record.person_mask.nbytes, record.mask_miss.nbytes)
        checksums = (checksum, zlib.crc32(of_image))
        rows.append((*shape, *of_people, image_start, size, *checksums, len(labels), *of_masks))
        originals.append(original or (size, checksum, record.orientation))
        file_names.append(record.file_name.encode(errors="surrogateescape"))
        people.append(record.people)
        labels += of_image
        image_start += size
        num_people += len(record.people)
    tables = {
        "record": np.array(rows, RECORD_TYPE),
        "file_name": np.array(file_names),
        "person": np.concatenate(people),
        "sample": np.array(samples, "<i8").reshape(-1, 2),
    }
    if max_side:
        tables["original"] = np.array(originals, ORIGINAL_TYPE)
    return tables, bytes(labels)


def _write_tables(
    file: h5py.File, tables: Mapping[str, np.ndarray], skeleton: Skeleton, source: str, max_side: int
) -> None:
    numbers = {"schema": SCHEMA_WITHOUT_ORIGINAL}
    if max_side:
        numbers = {"schema": SCHEMA, "max_side": max_side, "jpeg_quality": JPEG_QUALITY}
    numbers |= {"images": len(tables["record"]), "people": len(tables["person"]), "samples": len(tables["sample"])}
    skeleton_text = json.dumps(skeleton_to_table(skeleton))
    texts = {
        "format": FORMAT,
        "skeleton": skeleton_text,
        "source": source or "unknown",
        "fingerprint": compute_fingerprint(skeleton_text, tables),
    }
    for name, table in tables.items():
        file.create_dataset(name, data=table)
    for name, text in texts.items():  # HDF5's checksums protect text of fixed length only
        file.attrs[name] = np.bytes_(text.encode(errors="replace"))
    file.attrs.update(numbers)


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
    results = map_in_threads(find_damage, range(store.num_images), workers=workers, ahead=4 * workers)
    damages = [damage for damage in progress_bar(results, "verify", store.num_images) if damage is not None]
    if damages:
        raise DataError(f"{len(damages)} of {store.num_images} images are damaged; first: {damages[0]}")


def compute_statistics(store: Store) -> Iterator[str]:
    """Yield lines with quartiles of sizes, and how many people have each keypoint; ``DataError`` if it is damaged."""
    rows = progress_bar(range(store.num_images), "statistics", leave=False)
    joints = [store.read_record(row, with_image=False).joints for row in rows]
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
            yield f"{name:<{width}}" + "".join(f"{value:>10.1f}" for value in quartiles)
    labels = np.concatenate(joints)[..., 2].T  # (K, people)
    for name, values in zip(store.skeleton.keypoints, labels) if store.num_people else ():
        visible = (values == 2).sum() / max((values > 0).sum(), 1)
        yield f"{name:<{width}}{(values > 0).mean():>10.1%} labelled, {visible:.1%} of these visible"
