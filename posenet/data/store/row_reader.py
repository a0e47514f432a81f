"""Reads rows of an HDF5 dataset directly from the file.

HDF5 takes about 60 microseconds even for a small slice. It can report at which offset of the file a dataset is stored.
Reading a whole image from there by ``pread`` takes about 10 microseconds.
"""

from __future__ import annotations

import math
import os

import h5py
import numpy as np


class FileDescriptor:
    """A file descriptor that is closed at the latest when the last reference to this object is gone."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


class RowReader:
    """Reads slices of a dataset along its first axis.

    Contiguous datasets and flat ones in uncompressed chunks are read by ``pread``, from any descriptor of the file; the
    HDF5 file may then be closed. All others, and every dataset on a system without ``pread``, are read through HDF5.
    The file must stay unchanged.

    Attributes:
        needs_hdf5: whether the HDF5 file must stay open. The reader keeps it open.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dtype = dataset.dtype
        self._row_shape = dataset.shape[1:]
        self._row_bytes = dataset.dtype.itemsize * math.prod(self._row_shape)
        self._block_bytes, self._block_offsets = _find_blocks(dataset) if hasattr(os, "pread") else (0, [])
        self.needs_hdf5 = not self._block_offsets
        self._dataset = dataset if self.needs_hdf5 else None

    def read(self, descriptor: int, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop - 1`` as a read-only array."""
        data = self.read_bytes(descriptor, start, stop)
        return np.frombuffer(data, self._dtype).reshape(stop - start, *self._row_shape)

    def read_bytes(self, descriptor: int, start: int, stop: int) -> bytes:
        """The bytes of these rows; ``OSError`` if the file cannot be read or ends early.

        Args:
            descriptor: of the open file. It is not used if ``needs_hdf5``.
        """
        if self._dataset is not None:
            return bytes(self._dataset[start:stop].tobytes())
        position = start * self._row_bytes
        size = (stop - start) * self._row_bytes
        data = self._read_within_block(descriptor, position, size)
        while len(data) < size:
            more = self._read_within_block(descriptor, position + len(data), size - len(data))
            if not more:
                raise OSError("the file ends early")
            data += more
        return data

    def _read_within_block(self, descriptor: int, position: int, size: int) -> bytes:
        """At most ``size`` bytes from a position in the dataset's data; fewer where a block ends."""
        block, start = divmod(position, self._block_bytes)
        return os.pread(descriptor, min(size, self._block_bytes - start), self._block_offsets[block] + start)


def _find_blocks(dataset: h5py.Dataset) -> tuple[int, list[int]]:
    """The size in bytes of a dataset's blocks, and the offset of each in the file; none if only HDF5 can read it."""
    if dataset.file.userblock_size:
        return 0, []
    if dataset.size == 0:  # HDF5 allocates no space for it
        return 1, [0]
    offset = dataset.id.get_offset()
    if offset is not None:
        return max(dataset.nbytes, 1), [offset]
    if dataset.chunks is None or dataset.ndim != 1 or not hasattr(dataset.id, "chunk_iter"):
        return 0, []
    if dataset.id.get_create_plist().get_nfilters() > 0:  # compressed
        return 0, []
    rows_per_chunk = dataset.chunks[0]
    offsets = [-1] * math.ceil(len(dataset) / rows_per_chunk)

    def record_offset(chunk: h5py.h5d.StoreInfo) -> None:
        offsets[chunk.chunk_offset[0] // rows_per_chunk] = chunk.byte_offset

    dataset.id.chunk_iter(record_offset)
    if min(offsets, default=-1) < 0:
        return 0, []
    return rows_per_chunk * dataset.dtype.itemsize, offsets
