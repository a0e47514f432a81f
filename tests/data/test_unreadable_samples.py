"""Samples that cannot be read: which samples replace them, and when they are an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from posenet.data.dataset import PoseDataset
from posenet.data.loader import make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import Store
from posenet.errors import DataError
from posenet.settings import AugmentConfig
from tests.helpers.batches import same_batch, same_batches
from tests.helpers.drawn_data import flip_bit, make_record, write_store

SIZE = (64, 64)


@pytest.fixture
def damaged_store(stores: dict[str, Path], tmp_path: Path) -> Path:
    """A store in which one image and the mask of another image are damaged."""
    path = Path(shutil.copy(stores["train"], tmp_path / "copy.h5"))
    flip_bit(path, "images", 0)
    flip_bit(path, "labels", 3)
    return path


def test_with_and_without_workers_the_same_samples_are_replaced(damaged_store: Path) -> None:
    dataset = PoseDataset(Store(damaged_store), SIZE, augment=AugmentConfig())
    batches, loaded_by_workers = (
        list(make_loader(dataset, TrainSampler(len(dataset), 2, seed=1), workers)) for workers in (0, 2)
    )
    assert same_batches(loaded_by_workers, batches)
    faults = [fault for batch in batches for fault in batch.faults]
    assert faults
    for fault in faults:
        assert "copy.h5: image " in fault
        assert "do not match the checksum" in fault


def test_the_next_readable_sample_replaces_an_unreadable_one(damaged_store: Path) -> None:
    """The samples after it are tried in growing distances."""
    dataset = PoseDataset(Store(damaged_store), SIZE, augment=AugmentConfig())
    batches = [dataset[4, index] for index in range(len(dataset))]
    unreadable = [index for index, batch in enumerate(batches) if batch.faults]
    assert set(Store(damaged_store).samples[unreadable, 0].tolist()) == {0, 3}
    for index in unreadable:
        candidates = [(index + distance) % len(dataset) for distance in (1, 2, 4, 8, 16)]
        substitute = next(candidate for candidate in candidates if candidate not in unreadable)
        assert same_batch(batches[index]._replace(faults=()), batches[substitute])


def test_a_long_stretch_of_unreadable_samples_is_skipped_unless_it_is_the_whole_store(tmp_path: Path) -> None:
    path = write_store(tmp_path / "long.h5", [make_record(image, people=1) for image in range(20)])
    for image in range(2, 12):
        flip_bit(path, "images", image)
    with Store(path) as store:
        batch = PoseDataset(store, SIZE)[0, 2]
    assert batch.image_ids.tolist() == [18]
    assert len(batch.faults) == 5
    for image in (*range(2), *range(12, 20)):
        flip_bit(path, "labels", image)
    with Store(path) as store, pytest.raises(DataError, match="sample 2 cannot be read, nor can 5 others .*image 2 "):
        PoseDataset(store, SIZE)[0, 2]
