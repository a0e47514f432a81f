"""Augmentation: random numbers, parameters, the matrix, and covered squares."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenet.data.augment import (
    BORDER_COLOUR,
    Augmentation,
    cover_square,
    random_numbers,
)
from posenet.data.dataset import PoseDataset
from posenet.settings import AugmentConfig
from tests.helpers.drawn_data import make_record, write_store

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "affine.json").read_text())
SIZE = (256, 192)
"""Network input, (width, height)."""
COVERED = AugmentConfig(cutout_probability=1.0)


def augmentations(count: int, config: AugmentConfig = AugmentConfig()) -> list[Augmentation]:
    """Random augmentations, always the same ones."""
    return [Augmentation.draw(config, seed=0, epoch=0, index=index) for index in range(count)]


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: f"{case['degree']:.1f}")
def test_matrices_equal_the_measured_ones(case: dict[str, Any]) -> None:
    augmentation = Augmentation(
        flip=case["flip"],
        degrees=case["degree"],
        shift=tuple(case["shift"]),
        scale=case["scale"],
        person_height=MEASURED["target_dist"],
    )
    matrix = augmentation.matrix(tuple(case["center"]), case["scale_provided"], (MEASURED["width"], MEASURED["height"]))
    assert matrix.shape == (2, 3)
    np.testing.assert_allclose(matrix, case["matrix"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("image_size", [(640, 480), (480, 640), (256, 192), (100, 30), (31, 99)])
@pytest.mark.parametrize("flip", [False, True])
def test_image_framing_shows_the_whole_image_as_large_as_it_fits(image_size: tuple[int, int], flip: bool) -> None:
    matrix = Augmentation(flip=flip).image_matrix(image_size, SIZE)
    width, height = image_size
    edges = np.array([[-0.5, -0.5, 1], [width - 0.5, height - 0.5, 1]])
    low, high = np.sort(edges @ matrix.T, axis=0)
    gaps = np.concatenate([low + 0.5, np.array(SIZE) - 0.5 - high])
    assert gaps.min() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(gaps[:2], gaps[2:], atol=1e-9)


def test_parameters_follow_their_probabilities_and_fill_their_ranges() -> None:
    samples = augmentations(4000)
    jitters = np.array([a.jitter for a in samples if a.jitter is not None])
    values = {
        "degrees": ([a.degrees for a in samples], -40, 40),
        "dx": ([a.shift[0] for a in samples], -50, 50),
        "dy": ([a.shift[1] for a in samples], -50, 50),
        "scale": ([a.scale for a in samples if a.scale != 1], 0.7, 1.3),
        "hue": (jitters[:, 0], -10, 10),
        "saturation": (jitters[:, 1], -20, 60),
        "value": (jitters[:, 2], -20, 40),
    }
    for name, (drawn, low, high) in values.items():
        quantiles = (np.quantile(drawn, [0, 0.25, 0.5, 0.75, 1]) - low) / (high - low)
        assert quantiles[0] >= 0 and quantiles[4] <= 1, name
        np.testing.assert_allclose(quantiles, [0, 0.25, 0.5, 0.75, 1], atol=0.06, err_msg=name)
    together = np.corrcoef([values[name][0] for name in ("degrees", "dx", "dy")])
    assert np.abs(together - np.eye(3)).max() < 0.06
    shares = [
        np.mean([a.flip for a in samples]),
        np.mean([a.scale != 1 for a in samples]),
        np.mean([a.jitter is not None for a in samples]),
    ]
    np.testing.assert_allclose(shares, [0.5, 0.8, 0.2], atol=0.03)


def test_a_configuration_without_augmentation_changes_nothing() -> None:
    off = AugmentConfig(jitter_probability=0, scale_probability=0, flip_probability=0, degrees=0, shift=0)
    assert set(augmentations(20, off)) == {Augmentation()}
    assert augmentations(1, dataclasses.replace(off, person_height=0.4))[0].person_height == 0.4


def test_random_numbers_depend_on_seed_epoch_and_index_alone_and_never_change() -> None:
    """A run of an earlier version is repeated to the bit."""
    assert random_numbers(1, 2, 3)[:3] == [0.8207390403840691, 0.03710386389866471, 0.8490529025439173]
    assert random_numbers(*np.array([1, 2, 3])) == random_numbers(1, 2, 3)
    numbers = np.array([random_numbers(2**70, epoch, index) for epoch in range(20) for index in range(50)])
    assert numbers.min() >= 0 and numbers.max() < 1 and len(np.unique(numbers)) > 0.999 * numbers.size


def test_a_square_of_the_drawn_size_is_covered_and_cut_off_at_the_border() -> None:
    for cutout, covered in (((0.5, 0.25, 0.5), np.s_[0:32, 48:80]), ((0.0, 1.0, 0.5), np.s_[48:64, 0:16])):
        image = np.zeros((64, 128, 3), np.uint8)
        cover_square(image, cutout)
        expected = np.zeros_like(image)
        expected[covered] = BORDER_COLOUR
        np.testing.assert_array_equal(image, expected)


def test_a_covered_square_changes_the_image_alone(tmp_path: Path) -> None:
    path = write_store(tmp_path / "a.h5", [make_record(number, 3) for number in range(2)])
    plain = PoseDataset(path, (64, 128), augment=AugmentConfig())[1, 2]
    covered = PoseDataset(path, (64, 128), augment=COVERED)[1, 2]
    differs = (plain.images != covered.images).any(dim=3)[0].numpy()
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    assert len(rows) and max(np.ptp(rows), np.ptp(columns)) <= 32
    for name in ("joints", "person_mask", "mask_miss", "image_ids"):
        assert torch.equal(getattr(plain, name), getattr(covered, name))


def test_the_share_and_the_sizes_of_covered_squares_are_those_of_the_settings() -> None:
    config = AugmentConfig(cutout_probability=0.3)
    drawn = [Augmentation.draw(config, 5, epoch, index) for epoch in range(20) for index in range(100)]
    sides = [augmentation.cutout[2] for augmentation in drawn if augmentation.cutout]
    assert 0.26 < len(sides) / len(drawn) < 0.34
    assert 0.1 <= min(sides) < 0.11 and 0.29 < max(sides) <= 0.3
