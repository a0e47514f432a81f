"""Reading rows of a dataset directly from the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from posenet.data.store.row_reader import FileDescriptor, RowReader

VALUES = np.arange(1000, dtype="<i4")
LAYOUTS = {
    "contiguous": {},
    "contiguous rows": {"shape": (100, 10)},
    "chunks": {"chunks": (64,), "maxshape": (None,)},
    "chunked rows": {"shape": (100, 10), "chunks": (7, 10)},
    "compressed": {"chunks": (64,), "compression": "gzip"},
}


@pytest.fixture(params=LAYOUTS)
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[h5py.Dataset]:
    options = dict(LAYOUTS[request.param])
    values = VALUES.reshape(options.pop("shape", VALUES.shape))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("values", data=values, **options)
    with h5py.File(tmp_path / "a.h5") as file:
        yield file["values"]


def assert_reads_all_slices(dataset: h5py.Dataset) -> None:
    reader = RowReader(dataset)
    descriptor = dataset.file.id.get_vfd_handle()
    for start, stop in ((0, 1), (0, len(dataset)), (63, 65), (10, 90), (len(dataset) - 1, len(dataset))):
        expected = dataset[start:stop]
        found = reader.read(descriptor, start, stop)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        assert reader.read_bytes(descriptor, start, stop) == expected.tobytes()


def test_every_layout_is_read(dataset: h5py.Dataset) -> None:
    assert_reads_all_slices(dataset)


def test_every_layout_is_read_without_pread(dataset: h5py.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread", raising=False)
    assert_reads_all_slices(dataset)


def test_a_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["values"] = VALUES
    with h5py.File(path) as file:
        reader = RowReader(file["values"])
        descriptor = file.id.get_vfd_handle()
        os.truncate(path, path.stat().st_size - 100)
        reader.read(descriptor, 0, 900)
        with pytest.raises(OSError, match="ends early"):
            reader.read(descriptor, 0, 1000)


def test_the_hdf5_file_may_be_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["values"] = VALUES
    with h5py.File(path) as file:
        reader = RowReader(file["values"])
    with path.open("rb") as raw:
        np.testing.assert_array_equal(reader.read(raw.fileno(), 10, 990), VALUES[10:990])


def test_a_descriptor_is_closed_with_the_last_reference(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    descriptor = FileDescriptor(os.open(tmp_path / "a", os.O_RDONLY))
    number = descriptor.number
    os.fstat(number)
    del descriptor
    with pytest.raises(OSError):
        os.fstat(number)
