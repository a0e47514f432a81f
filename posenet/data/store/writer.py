"""Writes a store so that it is either complete under its name or not there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from posenet.data.store.record import Record
from posenet.data.store.schema import BLOBS, FORMAT, SCHEMA, checksum, columns, content_digest, describe, fingerprint
from posenet.errors import DataError
from posenet.files import flush_to_disk
from posenet.skeleton import COCO, Skeleton

BUFFER_BYTES = 16 * 2**20
"""Image bytes held before they are appended; a smaller store has its images in one piece, without padding."""
CHUNK_BYTES = 2**20
"""An image is mostly in one chunk, and the places of all chunks are read quickly; the last one is padded."""
SPARE_BYTES = 8 * 2**20
"""Room on the disk for what HDF5 writes besides the arrays."""


class StoreWriter:
    """Context manager that builds a store beside its final name and renames it when the block ends without an error.

    On any exception, Ctrl-C included, the unfinished file is removed and an earlier store stays as it was; what a
    killed build left behind is removed by the next one.

    Args:
        path: the final name; its folder is made if need be.
        skeleton: what ``Record.joints`` hold.
        source: name of the annotation file, kept as a note; folders are cut off.
        overwrite: replace an existing store. A file that is not HDF5 is never replaced.

    Raises:
        DataError: the path cannot be written or is taken.
    """

    def __init__(
        self, path: str | Path, skeleton: Skeleton = COCO, source: str | Path = "", overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self._skeleton = skeleton
        self._source = Path(source).name
        self._overwrite = overwrite
        self._unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        self._file: h5py.File | None = None
        self._columns: dict[str, list[Any]] = {name: [] for name in columns(skeleton.num_keypoints)}
        self._blobs: dict[str, list[np.ndarray]] = {name: [] for name in BLOBS}
        self._buffered = 0
        for name in (*BLOBS, "person"):
            self._columns[f"{name}_offset"].append(0)

    def __enter__(self) -> StoreWriter:
        check_output(self.path, self._overwrite)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            # Without a chunk cache a failing write fails here, not in a destructor. From this version of the layout
            # on all structures carry checksums; with the older ones damage can crash the library that reads them.
            self._file = h5py.File(self._unfinished, "w", rdcc_nbytes=0, libver=("v110", "v110"))
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {_reason(error)}") from error
        return self

    def add(self, record: Record, main: Sequence[int]) -> None:
        """Append one image with its people; ``main`` are the rows of the main persons, at least one."""
        if not main or not all(0 <= row < len(record.joints) for row in main):
            raise ValueError(f"main persons {list(main)} of {len(record.joints)} people")
        row = len(self._columns["image_id"])
        masks = [np.frombuffer(counts, np.uint8) for counts in (record.mask_all_rle, record.mask_miss_rle)]
        values = {
            "image_id": record.image_id,
            "file_name": record.file_name.encode(),
            "height": record.height,
            "width": record.width,
            "digest": content_digest(record.jpeg),
            "checksum": checksum(record),
        }
        for name, value in values.items():
            self._columns[name].append(value)
        lists = {
            "joints": record.joints,
            "box": record.boxes,
            "area": record.areas,
            "annotation_id": record.annotation_ids,
            "sample": [(row, person) for person in main],
        }
        for name, entries in lists.items():
            self._columns[name].extend(entries)
        for name, blob in zip(BLOBS, (record.jpeg, *masks)):
            self._blobs[name].append(blob)
            self._columns[f"{name}_offset"].append(self._columns[f"{name}_offset"][-1] + len(blob))
        self._columns["person_offset"].append(len(self._columns["joints"]))
        self._buffered += len(record.jpeg)
        if self._buffered >= BUFFER_BYTES:
            self._append_images()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._finish()
            elif issubclass(kind, OSError):
                raise error
        except OSError as reason:
            raise DataError(f"cannot write {self.path}: {_reason(reason)}") from reason
        finally:
            self._discard()

    def _discard(self) -> None:
        """Remove the unfinished file, unless it has become the store."""
        with contextlib.suppress(Exception):  # after a failed write HDF5 may fail to close as well
            self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def _require_room(self, size: int) -> None:
        """``DataError`` unless the disk takes ``size`` bytes more. HDF5 itself may crash where it does not."""
        free = shutil.disk_usage(self.path.parent).free
        if free < size + SPARE_BYTES:
            raise DataError(f"cannot write {self.path}: the disk has {free / 1e6:.0f} MB left; make room")

    def _append_images(self) -> None:
        block = np.concatenate(self._blobs["jpeg"])
        self._require_room(block.nbytes)
        self._blobs["jpeg"], self._buffered = [], 0
        if "jpeg" not in self._file:
            self._file.create_dataset("jpeg", data=block, maxshape=(None,), chunks=(CHUNK_BYTES,))
            return
        pictures = self._file["jpeg"]
        start = len(pictures)
        pictures.resize(start + len(block), axis=0)
        pictures[start:] = block

    def _finish(self) -> None:
        table = {
            name: np.array(self._columns[name], dtype).reshape(-1, *shape)
            for name, (dtype, shape, _) in columns(self._skeleton.num_keypoints).items()
        }
        if not len(table["sample"]):
            raise DataError(
                f"nothing to write to {self.path}: no readable image with a main person; "
                "check the annotations and the image folder"
            )
        masks = {name: np.concatenate(self._blobs[name]) for name in BLOBS[1:]}
        arrays = table | masks
        if "jpeg" not in self._file:
            arrays["jpeg"] = np.concatenate(self._blobs["jpeg"])
        elif self._blobs["jpeg"]:
            self._append_images()
        self._require_room(sum(values.nbytes for values in arrays.values()))
        for name, values in arrays.items():
            self._file.create_dataset(name, data=values)
        text = {
            "format": FORMAT,
            "skeleton": describe(self._skeleton),
            "source": self._source or "unknown",
            "fingerprint": fingerprint(table),
        }
        # Text of a fixed length lies where HDF5's checksums reach.
        self._file.attrs.update(
            {name: np.bytes_(value.encode(errors="replace")) for name, value in text.items()}
            | {
                "schema": SCHEMA,
                "images": len(table["image_id"]),
                "people": len(table["joints"]),
                "samples": len(table["sample"]),
            }
        )
        self._file.close()
        flush_to_disk(self._unfinished)
        check_output(self.path, self._overwrite)
        os.replace(self._unfinished, self.path)
        flush_to_disk(self.path.parent)

    def _remove_stale(self) -> None:
        """Remove what killed builds of the same store left; HDF5's lock tells them from one at work."""
        ours = re.compile(rf"{re.escape(self.path.name)}\.\d+\.partial")
        for path in self.path.parent.iterdir():
            if not ours.fullmatch(path.name):
                continue
            try:
                h5py.File(path, "r+").close()
            except BlockingIOError:
                continue
            except OSError:
                pass
            path.unlink()


def check_output(path: Path, overwrite: bool) -> None:
    """``DataError`` unless a store may be written to ``path``."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it, such as {path / 'train.h5'}")
    if not path.exists():
        return
    if not overwrite:
        raise DataError(f"{path} exists; name another output or give --overwrite to replace it")
    if not h5py.is_hdf5(path):
        raise DataError(f"{path} is not an HDF5 file and is not overwritten; name another output")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())
