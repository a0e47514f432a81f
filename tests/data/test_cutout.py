"""Squares that cover a part of a sample: their size, their share, and what they leave as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.data.augment import BORDER_COLOUR, Augmentation, cover_square, random_numbers
from posenet.data.dataset import PoseDataset
from posenet.errors import ConfigError
from posenet.settings import AugmentConfig, load_config
from tests.helpers.drawn_data import make_record, write_store

SIZE = (64, 128)
COVERED = AugmentConfig(cutout_probability=1.0, cutout=(0.25, 0.5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "a.h5", [make_record(number, 3) for number in range(6)])


def test_a_square_of_the_drawn_size_is_covered_and_cut_off_at_the_border() -> None:
    for cutout, covered in (((0.5, 0.25, 0.5), np.s_[0:32, 48:80]), ((0.0, 1.0, 0.5), np.s_[48:64, 0:16])):
        image = np.zeros((*SIZE, 3), np.uint8)
        cover_square(image, cutout)
        expected = np.zeros_like(image)
        expected[covered] = BORDER_COLOUR
        np.testing.assert_array_equal(image, expected)


def test_it_changes_the_image_alone(path: Path) -> None:
    plain = PoseDataset(path, SIZE, augment=AugmentConfig())[1, 2]
    covered = PoseDataset(path, SIZE, augment=COVERED)[1, 2]
    differs = (plain.images != covered.images).any(dim=3)[0].numpy()
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    assert len(rows) and max(np.ptp(rows), np.ptp(columns)) <= 32
    for name in ("joints", "person_mask", "mask_miss", "image_ids"):
        assert torch.equal(getattr(plain, name), getattr(covered, name))


def test_its_share_and_sizes_are_those_of_the_settings() -> None:
    config = AugmentConfig(cutout_probability=0.3, cutout=(0.1, 0.2))
    drawn = [Augmentation.draw(config, 5, epoch, index) for epoch in range(20) for index in range(100)]
    sides = [augmentation.cutout[2] for augmentation in drawn if augmentation.cutout]
    assert 0.26 < len(sides) / len(drawn) < 0.34
    assert 0.1 <= min(sides) < 0.11 and 0.19 < max(sides) <= 0.2


def test_it_changes_no_other_random_number() -> None:
    for index in range(50):
        plain = Augmentation.from_random_numbers(random_numbers(1, 2, index), AugmentConfig())
        assert Augmentation.draw(AugmentConfig(), 1, 2, index) == plain
        covered = Augmentation.draw(COVERED, 1, 2, index)
        assert (
            covered.cutout
            and covered.matrix((3, 4), 0.5, (64, 64)).tolist() == plain.matrix((3, 4), 0.5, (64, 64)).tolist()
        )


@pytest.mark.parametrize("value", ["[0.5, 0.2]", "[-0.1, 0.2]", "[0.1, 1.5]"])
def test_sizes_that_make_no_sense_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="augment.cutout must be"):
        load_config(None, [f"augment.cutout={value}"])
