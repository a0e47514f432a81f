"""The data set: framing, determinism, the samples that replace unreadable ones, and functions of users."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.data.dataset import PoseDataset, Sample, Transform, training_set
from posenet.data.loader import BatchLoader
from posenet.data.store import Store
from posenet.data.store_list import open_data_sets
from posenet.errors import ConfigError, DataError
from posenet.extensions import allow
from posenet.settings import AugmentConfig, load_config
from tests.helpers.drawn_data import flip_bit, make_record, same_batch, same_batches, write_store
from tests.helpers.tiny_training import train_tiny, weights

SIZE = (64, 128)


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


def test_a_sample_depends_on_seed_epoch_and_index_alone(store: Store) -> None:
    one, two = (PoseDataset(store, SIZE, augment=AugmentConfig(), seed=3) for _ in range(2))
    two[5, 2], two[0, 0]  # earlier reads must not matter
    np.random.seed(0)
    assert same_batch(one[1, 0], two[1, 0])
    assert not same_batch(one[1, 0], one[2, 0])
    assert not same_batch(one[1, 0], one[1, len(one)]), "the same sample again has another augmentation"
    assert not same_batch(one[1, 0], PoseDataset(store, SIZE, augment=AugmentConfig(), seed=4)[1, 0])


def test_a_skeleton_that_lets_nothing_be_mirrored_changes_the_flip_alone(store: Store) -> None:
    config = AugmentConfig(flip_probability=1.0)
    never = PoseDataset(store, SIZE, augment=replace(config, flip_probability=0.0))
    always = PoseDataset(store, SIZE, augment=config)
    with open_data_sets(str(store.path), replace(store.skeleton, mirror=False)) as still:
        dataset = PoseDataset(still, SIZE, augment=config)
        for index in range(len(store)):
            assert same_batch(dataset[1, index], never[1, index])
            assert not same_batch(dataset[1, index], always[1, index])


def test_a_batch_is_its_samples_padded_to_a_multiple_of_four_people(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "a.h5", [make_record(number, number) for number in (1, 3, 5)]))
    dataset = PoseDataset(store, SIZE, "image", AugmentConfig())
    keys = [(2, index) for index in range(3)]
    batch = dataset.__getitems__(keys)
    assert batch.joints.shape == (3, 8, 18, 3)
    for row, key in enumerate(keys):
        sample = dataset[key]
        people = sample.joints.shape[1]
        assert people == (8 if row == 2 else 4)
        assert sample.joints[0, : 2 * row + 1, :, 2].all() and not sample.joints[0, 2 * row + 1 :].any()
        assert torch.equal(batch.joints[row, :people], sample.joints[0]) and not batch.joints[row, people:].any()
        for name in ("images", "person_mask", "mask_miss", "image_ids"):
            assert torch.equal(getattr(batch, name)[row], getattr(sample, name)[0])


@pytest.fixture
def damaged_store(stores: dict[str, Path], tmp_path: Path) -> Path:
    """A store in which one image and the mask of another image are damaged."""
    path = Path(shutil.copy(stores["train"], tmp_path / "copy.h5"))
    flip_bit(path, "images", 0)
    flip_bit(path, "labels", 3)
    return path


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
    assert batch.image_ids.tolist() == [18] and len(batch.faults) == 5
    for image in (*range(2), *range(12, 20)):
        flip_bit(path, "labels", image)
    with Store(path) as store, pytest.raises(DataError, match="sample 2 cannot be read, nor can 5 others .*image 2 "):
        PoseDataset(store, SIZE)[0, 2]


def add_noise(sample: Sample, generator: np.random.Generator) -> Sample:
    noise = generator.integers(0, 20, sample.image.shape, np.uint8)
    return sample._replace(image=sample.image // 2 + noise)


class TestOwnFunction:
    """Samples that are changed by functions of users."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_depends_on_seed_epoch_and_index_alone(self, store: Store, workers: int) -> None:
        keys = [[(0, 1), (0, 3)], [(1, 1), (0, 1)], [(0, 3), (2, 5)]]
        dataset = PoseDataset(store, SIZE, seed=4, transform=add_noise)
        expected = list(map(dataset.__getitems__, keys))
        assert same_batches(list(BatchLoader(dataset, keys, workers)), expected)
        first, again, other_epoch = expected[0].images[0], expected[1].images[1], expected[1].images[0]
        assert torch.equal(first, again) and not torch.equal(first, other_epoch)
        other_seed = PoseDataset(store, SIZE, seed=5, transform=add_noise)[0, 1]
        assert not torch.equal(first, other_seed.images[0])

    def test_it_comes_after_all_augmentation(self, store: Store) -> None:
        config = AugmentConfig(cutout_probability=1.0)
        covered = PoseDataset(store, SIZE, augment=config)[0, 1]
        changed = PoseDataset(store, SIZE, augment=config, transform=add_noise)[0, 1]
        difference = changed.images.int() - covered.images.int() // 2
        assert difference.min() >= 0 and difference.max() < 20
        assert torch.equal(covered.joints, changed.joints)

    def test_it_may_change_joints_and_masks(self, store: Store) -> None:
        def drop_people(sample: Sample, generator: np.random.Generator) -> Sample:
            return sample._replace(joints=sample.joints[:1], mask_miss=np.zeros_like(sample.mask_miss))

        batch = PoseDataset(store, SIZE, "image", transform=drop_people)[0, 1]
        assert batch.joints[0, 0, :, 2].any() and not batch.joints[0, 1:].any()
        assert not batch.mask_miss.any() and batch.person_mask.any()

    @pytest.mark.parametrize(
        "function",
        [
            lambda sample, _: sample._replace(image=sample.image[..., 0]),
            lambda sample, _: sample._replace(mask_miss=sample.mask_miss[0]),
            lambda sample, _: sample._replace(person_mask=sample.person_mask / 255),
            lambda sample, _: sample._replace(joints=sample.joints + np.float32("nan")),
            lambda sample, _: sample._replace(joints=sample.joints[:, :5]),
            lambda sample, _: None,
            lambda sample, _: sample[99],
        ],
    )
    def test_what_is_no_such_sample_is_refused(self, store: Store, function: Transform) -> None:
        with pytest.raises(ConfigError, match="data.transform failed on image "):
            PoseDataset(store, SIZE, transform=function)[0, 0]

    def test_a_setting_names_it(self, stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("my_changes.py").write_text(
            "def darken(sample, generator):\n    sample.image[:] //= 3\n    return sample\n"
        )
        results = {}
        for name, transform in (("plain", ""), ("dark", "my_changes:darken")):
            train_tiny(stores, tmp_path / name, f"data.transform={transform}", max_steps=1)
            results[name] = weights(tmp_path / name)
        assert not all(torch.equal(results["dark"][key], value) for key, value in results["plain"].items())

    @pytest.mark.parametrize("name", ["no_such_module:change", "math:no_such_function", "..math:pi", "math:pi"])
    def test_a_name_of_no_function_is_refused(self, path: Path, name: str) -> None:
        allow(name)
        with open_data_sets(str(path), None) as stores, pytest.raises(ConfigError, match=f"data.transform={name} "):
            training_set(stores, load_config(None, [f"data.transform={name}"]))
