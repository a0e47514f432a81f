"""Rows of an HDF5 dataset, read where they lie in the file.

HDF5 takes some 60 microseconds for every slice, however small. It tells where a dataset's bytes are, and a plain
``pread`` there takes 10 for a whole image.
"""

from __future__ import annotations

import math
import os

import h5py
import numpy as np


class Rows:
    """Slices of one dataset's first axis.

    Datasets in one piece, and flat ones in chunks, are read by ``pread``; packed ones, and all of them on systems
    without it, through HDF5. The file must stay open and must not change.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self._dtype, self._shape = dataset.dtype, dataset.shape[1:]
        self._row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
        self._piece_bytes, self._pieces = _layout(dataset) if hasattr(os, "pread") else (0, [])
        self._file = dataset.file.id.get_vfd_handle() if self._pieces else -1

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop``, the last one left out; read-only."""
        return np.frombuffer(self.read_bytes(start, stop), self._dtype).reshape(stop - start, *self._shape)

    def read_bytes(self, start: int, stop: int) -> bytes:
        """The same as they lie in the file.

        Raises:
            OSError: the file cannot be read, or ends early.
        """
        if not self._pieces:
            return self._dataset[start:stop].tobytes()
        size, (piece, place) = (stop - start) * self._row_bytes, divmod(start * self._row_bytes, self._piece_bytes)
        data = os.pread(self._file, min(size, self._piece_bytes - place), self._pieces[piece] + place)
        while len(data) < size:
            piece, place = divmod(start * self._row_bytes + len(data), self._piece_bytes)
            more = os.pread(self._file, min(size - len(data), self._piece_bytes - place), self._pieces[piece] + place)
            if not more:
                raise OSError("the file ends early")
            data += more
        return data


def _layout(dataset: h5py.Dataset) -> tuple[int, list[int]]:
    """Bytes of a piece and the place of every piece in the file; none where HDF5 itself has to read."""
    if dataset.file.userblock_size:
        return 0, []
    if (offset := dataset.id.get_offset()) is not None:
        return max(dataset.nbytes, 1), [offset]
    packed = dataset.chunks is None or dataset.id.get_create_plist().get_nfilters() > 0
    if packed or dataset.ndim != 1 or not hasattr(dataset.id, "chunk_iter"):
        return 0, []
    size = dataset.chunks[0]
    places = [-1] * math.ceil(len(dataset) / size)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        places[chunk.chunk_offset[0] // size] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return size * dataset.dtype.itemsize, places if min(places, default=-1) >= 0 else []
