"""Grouping keypoint candidates by the annotations."""

from __future__ import annotations

import numpy as np

from posenet.inference.decoder.pose_model import refine_keypoints
from posenet.inference.perfect_grouping import group_by_truth, keypoint_sigmas
from posenet.skeleton import COCO
from tests.helpers.annotated_people import annotations, two_people


def test_a_derived_keypoint_has_the_mean_sigma_of_its_sources() -> None:
    assert keypoint_sigmas(COCO)[COCO.index("neck")] == 0.079
    assert keypoint_sigmas(COCO)[COCO.index("nose")] == 0.026


def test_exact_keypoints_are_grouped_into_the_annotated_people() -> None:
    people = two_people()
    xy = people[..., :2].reshape(-1, 2)
    keypoint = np.tile(np.arange(18), 2)
    grouped = group_by_truth(annotations(*people), keypoint, xy, np.ones(36), COCO)
    assert [person.found.all() for person in grouped] == [True, True]
    for person, joints in zip(grouped, people):
        np.testing.assert_allclose(person.keypoints[:, :2], joints[:, :2])


def test_the_positions_are_refined_as_the_decoder_does() -> None:
    people = two_people()
    xy = people[..., :2].reshape(-1, 2)
    keypoint = np.tile(np.arange(18), 2)
    grouped = group_by_truth(annotations(*people), keypoint, xy, np.full(36, 0.5), COCO)
    for person, joints in zip(grouped, people):
        found = np.concatenate([joints[:, :2], np.full((18, 1), 0.5)], axis=1)
        np.testing.assert_array_equal(person.keypoints, refine_keypoints(found[None], COCO)[0])
        assert np.abs(person.keypoints[:, :2] - joints[:, :2]).max() > 0.01
