"""Samples changed by functions of users: from (seed, epoch, index) alone, and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.data.dataset import PoseDataset, Sample, Transform, load_transform
from posenet.data.loader import BatchLoader
from posenet.errors import ConfigError
from posenet.extensions import allow
from posenet.settings import AugmentConfig
from tests.helpers.drawn_data import make_record, same_batches, write_store
from tests.helpers.tiny_training import train_tiny, weights

SIZE = (64, 128)
COVERED = AugmentConfig(cutout_probability=1.0)


def add_noise(sample: Sample, generator: np.random.Generator) -> Sample:
    noise = generator.integers(0, 20, sample.image.shape, np.uint8)
    return sample._replace(image=sample.image // 2 + noise)


def drop_people(sample: Sample, generator: np.random.Generator) -> Sample:
    return sample._replace(joints=sample.joints[:1], mask_miss=np.zeros_like(sample.mask_miss))


def turn_grey(sample: Sample, generator: np.random.Generator) -> Sample:
    return sample._replace(image=sample.image[..., 0])


def to_float(sample: Sample, generator: np.random.Generator) -> Sample:
    return sample._replace(person_mask=sample.person_mask / 255)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "a.h5", [make_record(number, 3) for number in range(6)])


class TestOwnFunction:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_depends_on_seed_epoch_and_index_alone(self, path: Path, workers: int) -> None:
        keys = [[(0, 1), (0, 3)], [(1, 1), (0, 1)], [(0, 3), (2, 5)]]
        dataset = PoseDataset(path, SIZE, augment=COVERED, seed=4, transform=add_noise)
        expected = list(map(dataset.__getitems__, keys))
        assert same_batches(list(BatchLoader(dataset, keys, workers)), expected)
        first, again, other_epoch = expected[0].images[0], expected[1].images[1], expected[1].images[0]
        assert torch.equal(first, again) and not torch.equal(first, other_epoch)
        other_seed = PoseDataset(path, SIZE, augment=COVERED, seed=5, transform=add_noise)[0, 1]
        assert not torch.equal(first, other_seed.images[0])

    def test_it_comes_after_all_augmentation(self, path: Path) -> None:
        covered = PoseDataset(path, SIZE, augment=COVERED)[0, 1]
        changed = PoseDataset(path, SIZE, augment=COVERED, transform=add_noise)[0, 1]
        difference = changed.images.int() - covered.images.int() // 2
        assert difference.min() >= 0 and difference.max() < 20
        assert torch.equal(covered.joints, changed.joints)

    def test_it_may_change_joints_and_masks(self, path: Path) -> None:
        batch = PoseDataset(path, SIZE, "image", transform=drop_people)[0, 1]
        assert batch.joints[0, 0, :, 2].any() and not batch.joints[0, 1:].any()
        assert not batch.mask_miss.any() and batch.person_mask.any()

    @pytest.mark.parametrize(
        "function, name, found",
        [
            (turn_grey, "image", r"\(64, 128\) and type uint8"),
            (to_float, "person_mask", r"\(16, 32\) and type float64"),
        ],
    )
    def test_another_shape_or_type_is_refused(self, path: Path, function: Transform, name: str, found: str) -> None:
        dataset = PoseDataset(path, SIZE, transform=function)
        with pytest.raises(ConfigError, match=f"data.transform returned {name} of shape {found} instead"):
            list(BatchLoader(dataset, [[(0, 0)]], workers=1))

    def test_what_is_no_sample_or_not_finite_is_refused(self, path: Path) -> None:
        for transform, message in [
            (lambda sample, generator: None, "returned a NoneType; let the function return a Sample"),
            (lambda sample, generator: sample._replace(joints=sample.joints + np.float32("nan")), "not finite"),
        ]:
            dataset = PoseDataset(path, (64, 64), transform=transform)
            with pytest.raises(ConfigError, match=message):
                dataset[0, 0]

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
    def test_a_name_of_no_function_is_refused(self, name: str) -> None:
        allow(name)
        with pytest.raises(ConfigError, match=f"data.transform={name} "):
            load_transform(name)
