"""Writing a store; its layout is that of ``posenet.data.store``."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from posenet.data.store import (
    FORMAT,
    ORIGINAL_TYPE,
    RECORD_TYPE,
    SCHEMA,
    SCHEMA_WITHOUT_ORIGINAL,
    OriginalRow,
    Record,
    RecordRow,
    compute_fingerprint,
)
from posenet.errors import DataError
from posenet.files import (
    atomic_replacement,
    check_outputs,
    is_standard_output,
    output_lock,
    remove_leftovers,
    resolve_link,
)
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_to_table

JPEG_QUALITY = 95
"""Of images that are made smaller."""


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

    On any exception, Ctrl-C included, the unfinished file is removed and an existing store stays unchanged. Unfinished
    files of builds that were killed are removed by the next build of the same store.

    Args:
        num_image_bytes: total size of the image files that will be added, or more.
        source: path of the annotation file. Its name is stored, but not used.
        overwrite: replace an existing file.
        max_side: not 0 if images with a longer side were made smaller.
    """
    path = resolve_link(Path(path))
    check_store_output(path, overwrite)
    try:
        with output_lock(path) as is_locked:
            if is_locked:
                remove_leftovers(path)
            with (
                atomic_replacement(path) as unfinished,
                # An array cannot shrink, and the bytes of smaller images are counted at the end; they wait here.
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

    After a write that has failed, closing the file writes again. If that fails too, HDF5 keeps objects that it has
    freed, and crashes when the program ends. So after an error the open file writes to the null device instead.
    """
    # From layout v110 on, all structures have checksums. Damage to older layouts can crash the library.
    file = h5py.File(path, "w", libver=("v110", "v110"), locking=False)
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
    """Appends images to the unfinished store ``file``, which will be called ``path``."""

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
        """Append an image with its people; ``main_rows`` are those of its main persons, or ``NO_PERSON``.

        ``original`` is the file of an image that may have been made smaller.
        """
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
        """Write all arrays that are not written yet, and the attributes."""
        if not self._records:
            raise DataError(
                f"nothing to write to {self.path}: no readable image with a main {skeleton.category}; "
                "check the annotations and the image folder"
            )
        tables = {
            "record": np.array(self._records, RECORD_TYPE),
            "file_name": np.array(self._file_names),
            "person": np.concatenate(self._people),
            "sample": np.array(self._samples, "<i8").reshape(-1, 2),
        }
        if self._max_side:
            tables["original"] = np.array(self._originals, ORIGINAL_TYPE)
        if self._images is None:
            self._waiting.flush()
            self._file.create_dataset("images", data=np.memmap(self._waiting, np.uint8, "r"))
        self._file.create_dataset("labels", data=np.frombuffer(b"".join(self._labels), np.uint8))
        for name, table in tables.items():
            self._file.create_dataset(name, data=table)
        skeleton_text = json.dumps(skeleton_to_table(skeleton))
        texts = {
            "format": FORMAT,
            "skeleton": skeleton_text,
            "source": source or "unknown",
            "fingerprint": compute_fingerprint(skeleton_text, tables),
        }
        # HDF5's checksums protect text of fixed length only.
        attributes: dict[str, Any] = {name: np.bytes_(text.encode(errors="replace")) for name, text in texts.items()}
        attributes["schema"] = SCHEMA if self._max_side else SCHEMA_WITHOUT_ORIGINAL
        if self._max_side:
            attributes |= {"max_side": self._max_side, "jpeg_quality": JPEG_QUALITY}
        attributes |= {"images": len(self._records), "people": self._num_people, "samples": len(self._samples)}
        for name, value in attributes.items():
            self._file.attrs[name] = value


def check_store_output(path: Path, overwrite: bool, inputs: Iterable[str | Path] = ()) -> None:
    """Make the folder of a store; ``DataError`` if it may not be written to ``path``, as it exists or is an input."""
    if is_standard_output(path):
        raise DataError("a store cannot be written to standard output; give the name of a file")
    check_outputs([path], inputs, overwrite=overwrite)
    if path.is_file() and not h5py.is_hdf5(path):
        raise DataError(f"{path} is not an HDF5 file and is not overwritten; choose another output")
