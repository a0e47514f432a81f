"""Samples that cannot be read: which samples replace them, and when they are an error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from posenet.data.store.row_reader import RowReader

from posenet.data.dataset import BatchBuffers, PoseDataset, Sample
from posenet.data.store import Store, reader
from posenet.errors import DataError
from posenet.settings import AugmentConfig
from tests.helpers.batches import load_epoch, same_batches
from tests.helpers.drawn_data import flip_bit, make_record, write_store

SIZE = (64, 64)


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that failed is repeated soon."""
    monkeypatch.setattr(reader, "RETRY_SECONDS", (0.0, 0.01, 0.02))


@pytest.fixture
def copied_store(stores: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "copy.h5"
    shutil.copy(stores["train"], path)
    return path


@pytest.fixture
def damaged_store(copied_store: Path) -> Path:
    """A store in which one image and the mask of another image are damaged."""
    flip_bit(copied_store, "images", 0)
    flip_bit(copied_store, "labels", 3)
    return copied_store


def load_without_substitute(dataset: PoseDataset, key: tuple[int, int]) -> Sample:
    (buffers,) = BatchBuffers.allocate(1, *dataset.size).per_sample()
    return dataset.load_sample(key, buffers)


def same_content(a: Sample, b: Sample) -> bool:
    """Whether two samples are equal, except for the faults that they report."""
    return a.image_id == b.image_id and all(np.array_equal(x, y) for x, y in zip(a[:4], b[:4]))


def test_with_and_without_workers_the_same_samples_are_replaced(damaged_store: Path) -> None:
    batches = load_epoch(damaged_store)
    assert same_batches(load_epoch(damaged_store, workers=2), batches)
    faults = [fault for batch in batches for fault in batch.faults]
    assert faults
    for fault in faults:
        assert "copy.h5: image " in fault
        assert "do not match the checksum" in fault


def test_the_next_readable_sample_replaces_an_unreadable_one(damaged_store: Path) -> None:
    """The samples after it are tried in growing distances."""
    dataset = PoseDataset(Store(damaged_store), SIZE, augment=AugmentConfig())
    epoch = 4
    unreadable = [index for index in range(len(dataset)) if dataset[epoch, index].faults]
    assert set(dataset.store.samples[unreadable, 0].tolist()) == {0, 3}
    for index in unreadable:
        candidates = [(index + distance) % len(dataset) for distance in (1, 2, 4)]
        substitute = next(candidate for candidate in candidates if candidate not in unreadable)
        assert same_content(dataset[epoch, index], load_without_substitute(dataset, (epoch, substitute)))


def test_a_long_stretch_of_unreadable_samples_is_skipped(tmp_path: Path) -> None:
    path = write_store(tmp_path / "long.h5", [make_record(image, people=1) for image in range(20)])
    for image in range(2, 12):
        flip_bit(path, "images", image)
    with Store(path) as store:
        sample = PoseDataset(store, SIZE)[0, 2]
    assert sample.image_id == 18
    assert len(sample.faults) == 5


def test_a_store_without_readable_samples_is_an_error(tmp_path: Path) -> None:
    path = write_store(tmp_path / "unreadable.h5", [make_record(image, people=1) for image in range(20)])
    for image in range(20):
        flip_bit(path, "labels", image)
    with Store(path) as store, pytest.raises(DataError, match="sample 2 cannot be read, nor can 5 others .*image 2 "):
        PoseDataset(store, SIZE)[0, 2]


def test_reads_that_fail_for_a_moment_are_repeated(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch, fast_retries: None
) -> None:
    expected = load_epoch(stores["train"])
    read_bytes = RowReader.read_bytes
    num_calls = 0

    def fail_twice_in_seven_calls(self: RowReader, descriptor: int, start: int, stop: int) -> bytes:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 7 in (1, 2):
            raise OSError(5, "Input/output error")
        return read_bytes(self, descriptor, start, stop)

    monkeypatch.setattr(RowReader, "read_bytes", fail_twice_in_seven_calls)
    assert same_batches(load_epoch(stores["train"]), expected)
    assert num_calls > 5
    assert not any(batch.faults for batch in expected)


@pytest.mark.parametrize("share", [0.3, 0.8, 0.97])
def test_a_store_that_is_truncated_while_open_gives_no_wrong_sample(
    copied_store: Path, fast_retries: None, share: float
) -> None:
    dataset = PoseDataset(Store(copied_store), SIZE)
    expected = [dataset[0, index] for index in range(len(dataset))]
    os.truncate(copied_store, int(copied_store.stat().st_size * share))
    for index, sample in enumerate(expected):
        try:
            loaded = load_without_substitute(dataset, (0, index))
        except DataError:
            continue
        assert same_content(loaded, sample)
