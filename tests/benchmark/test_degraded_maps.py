import dataclasses

import numpy as np
import pytest
import torch

from posenet.benchmark.degraded_maps import Degradation, degraded_maps
from posenet.data.targets import TargetRenderer
from posenet.settings import TargetsConfig
from posenet.skeleton import COCO
from tests.helpers.standing_people import standing_people

RENDERER = TargetRenderer(TargetsConfig(), COCO)
NO_DEGRADATION = Degradation(strength=9, missing=0, faded=1, jitter=0, width=1, ripple=0, confused=0, blobs=0)


def people(count=2):
    return standing_people(np.random.default_rng(3), count, (256, 256))


def degraded(degradation, seed=0, joints=None):
    joints = people() if joints is None else joints
    return degraded_maps(joints, (64, 64), RENDERER, np.random.default_rng(seed), degradation)


def test_without_degradation_the_maps_are_the_targets():
    expected = RENDERER(torch.from_numpy(people())[None], torch.zeros(1, 64, 64))[0].numpy()
    np.testing.assert_allclose(degraded(NO_DEGRADATION), expected, atol=1e-6)


def test_the_maps_depend_on_the_seed():
    np.testing.assert_array_equal(degraded(Degradation()), degraded(Degradation()))
    assert (degraded(Degradation()) != degraded(Degradation(), seed=1)).any()


@pytest.mark.parametrize(
    "change",
    [
        {"strength": 0.5},
        {"missing": 0.5},
        {"jitter": 0.05},
        {"width": 1.5},
        {"ripple": 0.05},
        {"confused": 1.0},
        {"blobs": 2.0},
    ],
    ids=str,
)
def test_every_kind_of_degradation_changes_the_maps(change):
    difference = degraded(dataclasses.replace(NO_DEGRADATION, **change)) - degraded(NO_DEGRADATION)
    assert np.abs(difference).max() > 0.05


def test_parts_fade_beside_the_same_part_of_another_person():
    joints = np.concatenate([people(1), people(1) + np.float32([6, 0, 0])])
    clear = degraded(NO_DEGRADATION, joints=joints)
    faded = degraded(dataclasses.replace(NO_DEGRADATION, faded=0.3), joints=joints)
    assert faded[COCO.part_channels].sum() < 0.8 * clear[COCO.part_channels].sum()


def test_maps_without_people_are_finite_and_in_range():
    maps = degraded(Degradation(), joints=np.zeros((0, 18, 3), np.float32))
    assert maps.shape == (50, 64, 64)
    assert np.isfinite(maps).all() and maps.min() >= 0 and maps.max() <= 1
