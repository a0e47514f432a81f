"""Batches: padding, pickling, and their memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from posenet.data.shared_buffers import ReceivedBuffers, SharedBufferPool

from posenet.data import batch as batch_module
from posenet.data.dataset import Batch, BatchBuffers, PoseDataset, Sample, collate
from posenet.data.store import Store
from posenet.settings import AugmentConfig

KEYS = [(0, 0), (0, 1), (0, 2)]


@pytest.fixture
def dataset(stores: dict[str, Path]) -> Iterator[PoseDataset]:
    with Store(stores["train"]) as store:
        yield PoseDataset(store, (64, 128), augment=AugmentConfig())


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process acts as a worker, and as the main process that receives its batches."""
    monkeypatch.setattr(batch_module, "get_worker_info", lambda: SimpleNamespace(num_workers=2))
    monkeypatch.setattr(batch_module, "worker_buffers", SharedBufferPool())
    monkeypatch.setattr(batch_module, "received_buffers", ReceivedBuffers())


def assert_equal(a: Batch, b: Batch) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5])) and a.faults == b.faults


def copied(batch: Batch) -> Batch:
    return type(batch)(*(part.clone() if isinstance(part, torch.Tensor) else part for part in batch))


def test_collate_pads_people_with_unlabelled_rows() -> None:
    def sample(people: int) -> Sample:
        return Sample(
            np.zeros((8, 8, 3), np.uint8),
            np.ones((people, 18, 3), np.float32),
            np.zeros((2, 2), np.uint8),
            np.zeros((2, 2), np.uint8),
            people,
        )

    batch = collate([sample(1), sample(3)], BatchBuffers.allocate(2, 8, 8))
    assert batch.joints.shape == (2, 4, 18, 3), "the number of people is a multiple of 4"
    assert batch.joints[0, 1:].abs().sum() == 0 and batch.joints[1, :3].min() == 1
    assert [collate([sample(n)], BatchBuffers.allocate(1, 8, 8)).joints.shape[1] for n in (0, 4, 5)] == [4, 4, 8]
    assert batch.images.dtype == torch.uint8 and batch.image_ids.tolist() == [1, 3]


def test_a_worker_sends_a_batch_as_two_buffers(dataset: PoseDataset, as_worker: None) -> None:
    batch = dataset.__getitems__(KEYS)
    _, (pixels, joints, *rest) = batch.__reduce__()
    assert pixels.buffer.nbytes == sum(part.nbytes for part in (batch.images, batch.person_mask, batch.mask_miss))
    assert joints.buffer.nbytes == batch.joints.nbytes
    assert not any(isinstance(value, torch.Tensor) for value in rest)


def test_a_worker_sends_no_buffer_twice_and_short_messages_from_then_on(dataset: PoseDataset, as_worker: None) -> None:
    keys = [(0, index % 3) for index in range(250)]
    for turn in range(6):
        batch = dataset.__getitems__(keys)
        message = pickle.dumps(batch)
        received = pickle.loads(message)
        assert_equal(received, batch)
        assert not received.images.is_shared() and not received.joints.is_shared()
        if turn >= 2:  # a worker has two buffers for images and two for joints
            assert len(message) < 4096 < batch.joints.nbytes


def test_a_worker_sends_sets_and_supervised_channels(dataset: PoseDataset, as_worker: None) -> None:
    """The channels lie in the buffer of the joints, so that messages stay short."""
    channels = np.random.default_rng(0).integers(0, 2, (3, 50), np.uint8)

    def load() -> Batch:
        samples = []
        buffers = BatchBuffers.allocate(3, 64, 128)
        for row, (key, sample_buffers) in enumerate(zip(KEYS, buffers.per_sample())):
            sample = dataset.load_sample(key, sample_buffers)
            samples.append(sample._replace(set_index=row % 2, supervised=channels[row]))
        return collate(samples, buffers)

    for turn in range(6):
        batch = load()
        message = pickle.dumps(batch)
        received = pickle.loads(message)
        assert_equal(received, batch)
        assert received.set_indices.tolist() == [0, 1, 0]
        np.testing.assert_array_equal(received.supervised.numpy(), channels)
        if turn >= 2:
            assert len(message) < 1500
    moved = batch.to(torch.device("meta"))
    assert moved.supervised.device.type == moved.set_indices.device.type == "meta"


def test_other_batches_are_pickled_by_value(
    dataset: PoseDataset, as_worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = dataset.__getitems__(KEYS)
    for batch in (
        copied(shared),
        shared._replace(joints=shared.joints.clone()),
        shared._replace(mask_miss=shared.mask_miss.clone()),
    ):
        assert batch.__reduce__() == (type(batch), tuple(batch))
    monkeypatch.setattr(batch_module, "get_worker_info", lambda: None)
    in_main_process = dataset.__getitems__(KEYS)
    assert_equal(pickle.loads(pickle.dumps(in_main_process)), in_main_process)


def test_a_batch_moves_to_a_device(dataset: PoseDataset) -> None:
    batch = dataset.__getitems__(KEYS)._replace(faults=("one",))
    moved = batch.to(torch.device("meta"))
    assert all(tensor.device.type == "meta" for tensor in moved[:5]) and moved.faults == ("one",)
    assert [tensor.shape for tensor in moved[:5]] == [tensor.shape for tensor in batch[:5]]
