"""The decoder's benchmark: degraded maps, and what went wrong."""

import dataclasses

import numpy as np
import torch

from posenet.annotations.coco_dataset import PersonAnnotation
from posenet.benchmark.decoding_errors import compare, grouped_perfectly, own_sigmas
from posenet.benchmark.degraded_maps import Degradation, degraded_maps
from posenet.benchmark.targets import standing_people
from posenet.data.targets import TargetRenderer
from posenet.inference.person import Person
from posenet.settings import Config
from posenet.skeleton import COCO

FLAWLESS = Degradation(strength=9, missing=0, faded=1, jitter=0, width=1, ripple=0, confused=0, blobs=0)


def people(count=2):
    return standing_people(np.random.default_rng(3), count, (256, 256))


def degraded(how, seed=0, joints=None):
    joints = people() if joints is None else joints
    return degraded_maps(joints, (64, 64), TargetRenderer.from_config(Config()), np.random.default_rng(seed), how)


def truth(*joints):
    box = np.array([0, 0, 1, 1], np.float32)
    return [
        PersonAnnotation(i, one, int((one[:, 2] > 0).sum()), box, 100.0**2, False, None) for i, one in enumerate(joints)
    ]


def person(joints):
    keypoints = joints.copy()
    keypoints[:, 2] = joints[:, 2] > 0
    return Person(keypoints, 1.0)


def test_no_degradation_is_the_target():
    expected = TargetRenderer.from_config(Config())(torch.from_numpy(people())[None], torch.zeros(1, 64, 64))[0].numpy()
    np.testing.assert_allclose(degraded(FLAWLESS), expected, atol=1e-6)


def test_degradation_follows_the_seed():
    np.testing.assert_array_equal(degraded(Degradation()), degraded(Degradation()))
    assert (degraded(Degradation()) != degraded(Degradation(), seed=1)).any()


def test_every_kind_of_degradation_shows():
    clean = degraded(FLAWLESS)
    for change in (
        {"strength": 0.5},
        {"missing": 0.5},
        {"jitter": 0.05},
        {"width": 1.5},
        {"ripple": 0.05},
        {"confused": 1.0},
        {"blobs": 2.0},
    ):
        assert np.abs(degraded(dataclasses.replace(FLAWLESS, **change)) - clean).max() > 0.05, change
    beside = np.concatenate([people(1), people(1) + np.float32([6, 0, 0])])
    faded = degraded(dataclasses.replace(FLAWLESS, faded=0.3), joints=beside)
    assert faded[COCO.part_channels].sum() < 0.8 * degraded(FLAWLESS, joints=beside)[COCO.part_channels].sum()


def test_nobody_gives_sound_maps():
    maps = degraded(Degradation(), joints=np.zeros((0, 18, 3), np.float32))
    assert maps.shape == (50, 64, 64) and np.isfinite(maps).all() and maps.min() >= 0 and maps.max() <= 1


def test_derived_keypoints_have_their_sources_sigma():
    assert own_sigmas(COCO)[COCO.index("neck")] == 0.079


def test_right_people_have_no_faults():
    one, two = people()
    counts, errors = compare(truth(one, two), [person(two), person(one)], COCO)
    assert counts == {
        "labelled": 36,
        "missed": 0,
        "spurious": 0,
        "misgiven": 0,
        "people": 2,
        "whole": 2,
        "split": 0,
        "merged": 0,
    }
    assert len(errors) == 36 and not errors.any()


def test_faults_are_told_apart():
    one, two = people()
    two[:, 0] += 400
    mixed, rest, lonely = one.copy(), one.copy(), two.copy()
    mixed[:3] = two[:3]  # three keypoints of the neighbour
    rest[3:] = 0  # and the own ones as another person
    lonely[:5] = 0  # of two, two keypoints are missing
    lonely[17, :2] = 2000  # and one is far away
    counts, errors = compare(truth(one, two), [person(mixed), person(rest), person(lonely)], COCO)
    assert counts == {
        "labelled": 36,
        "missed": 3,
        "spurious": 1,
        "misgiven": 6,
        "people": 2,
        "whole": 0,
        "split": 2,
        "merged": 1,
    }
    assert len(errors) == 33


def test_perfect_grouping_gives_the_truth_back():
    joints = people()
    xy, keypoint = joints[..., :2].reshape(-1, 2), np.tile(np.arange(18), 2)
    found = grouped_perfectly(truth(*joints), keypoint, xy, np.full(36, 0.5), COCO)
    assert [one.found.all() for one in found] == [True, True]
    for one, own in zip(found, joints):
        np.testing.assert_allclose(one.keypoints[:, :2], own[:, :2])


def test_nothing_found_and_nobody_there():
    counts, errors = compare([], [], COCO)
    assert not any(counts.values()) and not len(errors)
    assert compare(truth(*people()), [], COCO)[0]["missed"] == 36
