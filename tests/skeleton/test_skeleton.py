"""The skeleton: names, channel layout, flips, annotation files and inconsistent definitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import compare_names

KEYPOINTS = (
    "nose, neck, right_shoulder, right_elbow, right_wrist, left_shoulder, left_elbow, left_wrist, right_hip, "
    "right_knee, right_ankle, left_hip, left_knee, left_ankle, right_eye, left_eye, right_ear, left_ear"
).split(", ")
PARTS = (
    "neck-nose, neck-right_eye, neck-left_eye, neck-right_ear, neck-left_ear, nose-right_eye, nose-left_eye, "
    "right_eye-right_ear, left_eye-left_ear, neck-right_shoulder, right_shoulder-right_elbow, "
    "right_elbow-right_wrist, neck-left_shoulder, left_shoulder-left_elbow, left_elbow-left_wrist, neck-right_hip, "
    "right_hip-right_knee, right_knee-right_ankle, neck-left_hip, left_hip-left_knee, left_knee-left_ankle, "
    "nose-right_shoulder, nose-left_shoulder, right_shoulder-right_hip, right_hip-left_knee, left_shoulder-left_hip, "
    "left_hip-right_knee, right_ear-right_shoulder, left_ear-left_shoulder, right_hip-left_hip"
).split(", ")
FILE_NAMES = (
    "nose left_eye right_eye left_ear right_ear left_shoulder right_shoulder left_elbow right_elbow left_wrist "
    "right_wrist left_hip right_hip left_knee right_knee left_ankle right_ankle"
).split()


def channel_names() -> list[str]:
    return ["-".join(ends) for ends in COCO.parts] + list(COCO.keypoints) + ["mask", "foreground"]


def mirrored(name: str) -> set[str]:
    """The keypoints of a channel in a mirrored image; parts have no direction."""
    swap = {"left": "right", "right": "left"}
    return {"_".join(swap.get(word, word) for word in end.split("_")) for end in name.split("-")}


def file_person(labelled: dict[str, tuple[float, float, int]]) -> np.ndarray:
    """(1, 17, 3) as an annotation file holds it, with the named keypoints labelled."""
    keypoints = np.zeros((1, 17, 3))
    for name, values in labelled.items():
        keypoints[0, FILE_NAMES.index(name)] = values
    return keypoints


def test_channels_are_the_documented_parts_then_keypoints_then_mask_then_foreground() -> None:
    assert channel_names() == [*PARTS, *KEYPOINTS, "mask", "foreground"]
    assert ["-".join(COCO.keypoints[end] for end in ends) for ends in COCO.part_ends] == PARTS
    assert list(COCO.file_keypoints) == list(COCO.file_names) == FILE_NAMES
    channels = list(range(COCO.num_channels))
    assert (channels[COCO.part_channels], channels[COCO.keypoint_channels]) == (channels[:30], channels[30:48])
    assert COCO.num_channels == 50


def test_sigmas_are_those_of_the_coco_evaluation() -> None:
    params = pytest.importorskip("pycocotools.cocoeval").Params(iouType="keypoints")
    np.testing.assert_allclose(COCO.sigmas, params.kpt_oks_sigmas, rtol=1e-6)


def test_flips_map_every_name_to_its_mirror_image() -> None:
    assert [{COCO.keypoints[k]} for k in COCO.flip_keypoints] == [mirrored(name) for name in KEYPOINTS]
    names = channel_names()
    assert [set(names[c].split("-")) for c in COCO.flip_channels] == [mirrored(name) for name in names]


def test_annotated_keypoints_survive_the_round_trip() -> None:
    rng = np.random.default_rng(0)
    keypoints = rng.uniform(1, 600, (4, 17, 3))
    keypoints[..., 2] = rng.integers(0, 3, (4, 17))
    keypoints[keypoints[..., 2] == 0] = 0
    joints = COCO.to_network_order(keypoints)
    assert joints.shape == (4, 18, 3) and joints.dtype == np.float32
    left_ankle = keypoints[:, FILE_NAMES.index("left_ankle")]
    np.testing.assert_allclose(joints[:, KEYPOINTS.index("left_ankle")], left_ankle, rtol=1e-6)
    np.testing.assert_allclose(COCO.to_file_order(joints), keypoints, rtol=1e-6)


@pytest.mark.parametrize("left, right, expected", [(2, 2, 2), (2, 1, 1), (1, 2, 1), (1, 1, 1), (2, 0, 0), (0, 2, 0)])
def test_the_neck_is_as_visible_as_the_less_visible_shoulder(left: int, right: int, expected: int) -> None:
    joints = COCO.to_network_order(file_person({"left_shoulder": (10, 20, left), "right_shoulder": (30, 50, right)}))
    neck = [20, 35, expected] if expected else [0, 0, 0]
    np.testing.assert_array_equal(joints[0, KEYPOINTS.index("neck")], neck)


SMALL: dict[str, Any] = {
    "keypoints": ("head", "Lhand", "Rhand"),
    "parts": (("head", "Lhand"), ("head", "Rhand")),
    "left_right": (("Lhand", "Rhand"),),
    "derived": {"head": ("Lhand", "Rhand")},
    "file_keypoints": ("Lhand", "Rhand"),
    "file_names": ("left_hand", "right_hand"),
    "sigmas": (0.1, 0.1),
}


def test_channels_and_flips_follow_from_any_skeleton() -> None:
    small = Skeleton(**SMALL)
    assert small.num_channels == 7
    np.testing.assert_array_equal(small.flip_channels, [1, 0, 2, 4, 3, 5, 6])
    joints = small.to_network_order(np.array([[[0, 0, 2], [4, 2, 1]]]))
    np.testing.assert_array_equal(joints, [[[2, 1, 1], [0, 0, 2], [4, 2, 1]]])


def test_a_network_fits_a_skeleton_with_other_sigmas_and_drawing() -> None:
    assert not COCO.changes_of_network(dataclasses.replace(COCO, sigmas=(0.1,) * 17, layout={}, drawn=()))
    assert COCO.changes_of_network(dataclasses.replace(COCO, parts=COCO.parts[::-1]))
    assert COCO.changes_of_network(dataclasses.replace(COCO, left_right=()))


@pytest.mark.parametrize(
    "names, difference",
    [
        ("abcde", ""),
        ("abced", "the same names in another order or number: 'e', not 'd'"),
        ("ab", "no 'c', 'd', 'e'"),
        ("Xbcdef", "no 'a' and also 'X', 'f'"),
        ("abcdeWXYZ", "also 'W', 'X', 'Y' (+1 more)"),
        ("abcdee", "the same names in another order or number: 'e', not ''"),
    ],
)
def test_other_names_are_compared_in_words(names: str, difference: str) -> None:
    assert compare_names(names, "abcde") == difference
