"""Writes a store, in one file or in shards. Files appear under their names only when all of them are complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from posenet.data.store import schema
from posenet.data.store.record import Record
from posenet.errors import DataError
from posenet.files import flush_to_disk, is_standard_output, resolve_link
from posenet.skeleton import COCO, Skeleton

BUFFER_BYTES = 16 * 2**20
"""Image bytes collected before they are appended to the file. A store with fewer has all its images in one block."""
CHUNK_BYTES = 2**20
"""Chunk size of the image bytes. Most images are in a single chunk, and there are few chunks. The last is padded."""
SPARE_BYTES = 8 * 2**20
"""Free disk space required for the structures that HDF5 writes in addition to the arrays."""


class StoreWriter:
    """Context manager that writes a store under a temporary name and renames it at the end of the block.

    On any exception, Ctrl-C included, the unfinished file is removed and an existing store stays unchanged. Unfinished
    files of builds that were killed are removed by the next build of the same store.

    Args:
        path: file of the store; its folder is created if it is missing.
        source: path of the annotation file. Its name is stored, but not used.
        overwrite: replace an existing store. A file that is not HDF5 is never replaced.
    """

    _file: h5py.File

    def __init__(
        self, path: str | Path, skeleton: Skeleton = COCO, source: str | Path = "", overwrite: bool = False
    ) -> None:
        self.path = resolve_link(Path(path))
        self._skeleton = skeleton
        self._source = Path(source).name
        self._overwrite = overwrite
        self._unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        self._table: dict[str, list[Any]] = {name: [] for name in schema.array_specs(skeleton.num_keypoints)}
        for name in (*schema.BYTE_ARRAYS, "person"):
            self._table[f"{name}_offset"].append(0)
        self._bytes: dict[str, list[np.ndarray]] = {name: [] for name in schema.BYTE_ARRAYS}
        self._buffered = 0

    def __enter__(self) -> StoreWriter:
        check_output(self.path, self._overwrite)
        with self.data_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_stale_files()
            # Without a chunk cache, a failing write raises here and not in a destructor. From layout v110 on, all
            # structures have checksums. Damage to older layouts can crash the library that reads them.
            self._file = h5py.File(self._unfinished, "w", rdcc_nbytes=0, libver=("v110", "v110"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            with self.data_errors():
                if error is None:
                    self.complete()
                    self.publish()
                elif isinstance(error, OSError):
                    raise error
        finally:
            self.discard()

    def add(self, record: Record, main_rows: Sequence[int]) -> None:
        """Append one image with its people.

        ``main_rows`` are the rows of its main persons: at least one, or none of an image without people, which then has
        one sample without a person.
        """
        if not len(record.joints) and not main_rows:
            main_rows = [schema.NO_PERSON]
        elif not main_rows or not all(0 <= row < len(record.joints) for row in main_rows):
            raise ValueError(f"main persons {list(main_rows)} of {len(record.joints)} people")
        table = self._table
        image_row = len(table["image_id"])
        table["image_id"].append(record.image_id)
        table["file_name"].append(record.file_name.encode())
        table["height"].append(record.height)
        table["width"].append(record.width)
        table["orientation"].append(record.orientation)
        table["digest"].append(schema.content_digest(record.image_bytes))
        table["checksum"].append(schema.checksum(record))
        table["joints"].extend(record.joints)
        table["box"].extend(record.boxes)
        table["area"].extend(record.areas)
        table["annotation_id"].extend(record.annotation_ids)
        table["person_offset"].append(len(table["joints"]))
        table["sample"].extend((image_row, person_row) for person_row in main_rows)
        self._append_bytes("jpeg", record.image_bytes)
        self._append_bytes("mask_all", np.frombuffer(record.mask_all_rle, np.uint8))
        self._append_bytes("mask_miss", np.frombuffer(record.mask_miss_rle, np.uint8))
        self._buffered += len(record.image_bytes)
        if self._buffered >= BUFFER_BYTES:
            self._flush_images()

    def _append_bytes(self, name: str, values: np.ndarray) -> None:
        offsets = self._table[f"{name}_offset"]
        offsets.append(offsets[-1] + len(values))
        self._bytes[name].append(values)

    def _flush_images(self) -> None:
        """Append the collected image bytes to the file."""
        block = np.concatenate(self._bytes["jpeg"])
        self._require_disk_space(block.nbytes)
        self._bytes["jpeg"] = []
        self._buffered = 0
        if "jpeg" not in self._file:
            self._file.create_dataset("jpeg", data=block, maxshape=(None,), chunks=(CHUNK_BYTES,))
            return
        dataset = self._file["jpeg"]
        start = len(dataset)
        dataset.resize(start + len(block), axis=0)
        dataset[start:] = block

    def complete(self) -> str:
        """Write all arrays except the images, and the attributes, and close the file; return its fingerprint."""
        is_turned = any(orientation != 1 for orientation in self._table["orientation"])
        version = schema.SCHEMA_WITH_ORIENTATION if is_turned else schema.SCHEMA_VERSION
        if any(person_row == schema.NO_PERSON for _, person_row in self._table["sample"]):
            version = schema.SCHEMA_UNLABELLED
        table = {
            name: np.array(self._table[name], spec.dtype).reshape(-1, *spec.row_shape)
            for name, spec in schema.array_specs(self._skeleton.num_keypoints, version).items()
        }
        if not len(table["sample"]):
            raise DataError(
                f"nothing to write to {self.path}: no readable image with a main person; "
                "check the annotations and the image folder"
            )
        arrays = dict(table)
        arrays["mask_all"] = np.concatenate(self._bytes["mask_all"])
        arrays["mask_miss"] = np.concatenate(self._bytes["mask_miss"])
        if "jpeg" not in self._file:
            arrays["jpeg"] = np.concatenate(self._bytes["jpeg"])
        elif self._bytes["jpeg"]:
            self._flush_images()
        self._require_disk_space(sum(values.nbytes for values in arrays.values()))
        for name, values in arrays.items():
            self._file.create_dataset(name, data=values)
        fingerprint = schema.fingerprint(table)
        self._write_attributes(table, version, fingerprint)
        self._file.close()
        flush_to_disk(self._unfinished)
        return fingerprint

    def mark_build(self, build: str) -> None:
        """Write the identity of the build into the completed file of a shard."""
        with h5py.File(self._unfinished, "r+", libver=("v110", "v110")) as file:
            file.attrs["build"] = np.bytes_(build)
        flush_to_disk(self._unfinished)

    def publish(self) -> None:
        """Rename the completed file to the name of the store, unless that is already done."""
        if not self._unfinished.exists():
            return
        check_output(self.path, self._overwrite)
        os.replace(self._unfinished, self.path)
        flush_to_disk(self.path.parent)

    def _write_attributes(self, table: dict[str, np.ndarray], version: int, fingerprint: str) -> None:
        texts = {
            "format": schema.FORMAT,
            "skeleton": schema.skeleton_to_json(self._skeleton),
            "source": self._source or "unknown",
            "fingerprint": fingerprint,
        }
        for name, text in texts.items():
            # HDF5's checksums protect text of fixed length only.
            self._file.attrs[name] = np.bytes_(text.encode(errors="replace"))
        self._file.attrs["schema"] = version
        self._file.attrs["images"] = len(table["image_id"])
        self._file.attrs["people"] = len(table["joints"])
        self._file.attrs["samples"] = len(table["sample"])

    def discard(self) -> None:
        """Remove the unfinished file, unless it has become the store."""
        with contextlib.suppress(Exception):  # after a failed write HDF5 may also fail to close
            self._file.close()
        self._unfinished.unlink(missing_ok=True)

    @contextlib.contextmanager
    def data_errors(self) -> Iterator[None]:
        """Turn errors of the file system into ``DataError``."""
        try:
            yield
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {_reason(error)}") from error

    def _require_disk_space(self, size: int) -> None:
        """Raise ``DataError`` unless ``size`` more bytes fit on the disk. HDF5 itself may crash on a full disk."""
        free = shutil.disk_usage(self.path.parent).free
        if free < size + SPARE_BYTES:
            raise DataError(f"cannot write {self.path}: the disk has {free / 1e6:.0f} MB left; free some space")

    def _remove_stale_files(self) -> None:
        """Remove unfinished files of killed builds of this store. The file of a running build is locked by HDF5."""
        pattern = re.compile(rf"{re.escape(self.path.name)}\.\d+\.partial")
        for path in self.path.parent.iterdir():
            if not pattern.fullmatch(path.name):
                continue
            try:
                h5py.File(path, "r+").close()
            except BlockingIOError:
                continue
            except OSError:
                pass
            path.unlink()


class ShardedStoreWriter:
    """Context manager that writes a store in several files, and renames all of them at the end of the block.

    The images are divided into contiguous shares of equal size, so that the records of all shards one after the other
    are those of a single store. The tables of only one shard at a time are in memory. See ``StoreWriter`` for
    interrupted and killed builds. A kill between the first and the last renaming, which takes milliseconds, can mix two
    builds. ``shards.open_store`` refuses to read such a mixture.

    Args:
        paths: the files of the shards.
        image_ids: ids of the images in the order in which they are added. Images may be left out.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        image_ids: Sequence[int],
        skeleton: Skeleton = COCO,
        source: str | Path = "",
        overwrite: bool = False,
    ) -> None:
        self._paths = paths
        self._overwrite = overwrite
        self._shards = [StoreWriter(path, skeleton, source, overwrite) for path in paths]
        self._shard_of_image = {image_id: row * len(paths) // len(image_ids) for row, image_id in enumerate(image_ids)}
        self._started: list[StoreWriter] = []
        self._fingerprints: list[str] = []

    def __enter__(self) -> ShardedStoreWriter:
        self._check_outputs()
        return self

    def add(self, record: Record, main_rows: Sequence[int]) -> None:
        """Append one image with its people to its shard; see ``StoreWriter.add``."""
        shard = self._shards[self._shard_of_image[record.image_id]]
        if not self._started or shard is not self._started[-1]:
            self._complete_last_shard()
            self._started.append(shard)
            shard.__enter__()
        with shard.data_errors():
            shard.add(record, main_rows)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is None:
                self._publish()
        finally:
            for shard in self._started:
                shard.discard()

    def _check_outputs(self) -> None:
        for path in self._paths:
            check_output(path, self._overwrite)

    def _complete_last_shard(self) -> None:
        """Complete the file of the shard that was added to last, if any."""
        if self._started:
            shard = self._started[-1]
            with shard.data_errors():
                self._fingerprints.append(shard.complete())

    def _publish(self) -> None:
        """Give all files their names."""
        self._complete_last_shard()
        if len(self._started) < len(self._shards):
            empty = next(shard for shard in self._shards if shard not in self._started)
            raise DataError(f"no readable image with a main person for {empty.path}; use fewer --shards")
        build = hashlib.sha256("".join(self._fingerprints).encode()).hexdigest()
        for shard in self._shards:
            with shard.data_errors():
                shard.mark_build(build)
        self._check_outputs()
        try:
            self._rename_all()
        except KeyboardInterrupt:
            self._rename_all()  # all files are complete, and only some of them would be a mixture of two builds
            raise

    def _rename_all(self) -> None:
        for shard in self._shards:
            with shard.data_errors():
                shard.publish()


def check_output(path: Path, overwrite: bool) -> None:
    """Raise ``DataError`` unless a store may be written to ``path``."""
    if is_standard_output(path):
        raise DataError("a store cannot be written to standard output; give the name of a file")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file in it, such as {path / 'train.h5'}")
    if not path.exists():
        return
    if not overwrite:
        raise DataError(f"{path} exists; choose another output, or replace it with --overwrite")
    if not h5py.is_hdf5(path):
        raise DataError(f"{path} is not an HDF5 file and is not overwritten; choose another output")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())
