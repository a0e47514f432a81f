"""The data set: shapes, framing, flips and determinism. Unreadable samples: ``test_unreadable_samples``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posenet.data.dataset import PoseDataset
from posenet.data.store import Store
from posenet.settings import AugmentConfig
from tests.helpers.batches import same_batch


@pytest.mark.parametrize("framing", ["person", "image"])
def test_sample_shapes_and_types(store: Store, framing: str) -> None:
    dataset = PoseDataset(store, (128, 192), framing, AugmentConfig())
    assert len(dataset) == (len(store) if framing == "person" else store.num_images)
    batch = dataset[0, 0]
    assert batch.images.shape == (1, 128, 192, 3)
    assert batch.joints.shape[2:] == (18, 3) and batch.joints.dtype == torch.float32
    assert batch.person_mask.shape == batch.mask_miss.shape == (1, 32, 48)
    assert {tensor.dtype for tensor in (batch.images, batch.person_mask, batch.mask_miss)} == {torch.uint8}
    assert batch.person_mask.max() == 255


def test_person_framing_centres_the_main_person_at_the_configured_height(store: Store) -> None:
    dataset = PoseDataset(store, (256, 256), "person")
    for index in range(len(store)):
        record, row = dataset.read_record(index)
        joints = dataset[0, index].joints[0, row].numpy()
        box = record.people["box"][row]
        scale = 0.6 * 255 / box[3]
        labelled = joints[:, 2] > 0
        expected = (record.joints[row][labelled, :2] - (box[:2] + box[2:] / 2)) * scale + 127.5
        assert np.allclose(joints[labelled, :2], expected, atol=1e-3)


def test_image_framing_shows_the_whole_image(store: Store) -> None:
    dataset = PoseDataset(store, (256, 384), "image")
    record = store.read_record(0)
    joints = dataset[0, 0].joints[0, : len(record.joints)].numpy()
    scale = min(256 / record.height, 384 / record.width)
    labelled = joints[..., 2] > 0
    expected = (record.joints[..., :2] - [(record.width - 1) / 2, (record.height - 1) / 2]) * scale + [191.5, 127.5]
    assert np.allclose(joints[labelled][:, :2], expected[labelled], atol=1e-3)


def test_a_sample_depends_on_seed_epoch_and_index_alone(store: Store) -> None:
    one, two = (PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=3) for _ in range(2))
    two[5, 2], two[0, 0]  # earlier reads must not matter
    np.random.seed(0)
    assert same_batch(one[1, 0], two[1, 0])
    assert not same_batch(one[1, 0], one[2, 0])
    assert not same_batch(one[1, 0], PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=4)[1, 0])


def test_a_batch_is_its_samples(store: Store) -> None:
    dataset = PoseDataset(store, (64, 128), augment=AugmentConfig())
    keys = [(2, index) for index in range(len(dataset))]
    batch = dataset.__getitems__(keys)
    for row, key in enumerate(keys):
        sample = dataset[key]
        people = sample.joints.shape[1]
        assert torch.equal(batch.joints[row, :people], sample.joints[0]) and not batch.joints[row, people:].any()
        for name in ("images", "person_mask", "mask_miss", "image_ids"):
            assert torch.equal(getattr(batch, name)[row], getattr(sample, name)[0])
