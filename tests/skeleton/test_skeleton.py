"""The skeleton: names, channel layout, flips, annotation files, and the mapping of one skeleton to another."""

import dataclasses

import numpy as np
import pytest

from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import KeypointMapping
from posenet.skeleton.skeleton_file import skeleton_from_table

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


@pytest.mark.parametrize("left, right, expected", [(2, 2, 2), (2, 1, 1), (1, 2, 1), (2, 0, 0), (0, 2, 0)])
def test_the_neck_is_as_visible_as_the_less_visible_shoulder(left: int, right: int, expected: int) -> None:
    keypoints = np.zeros((1, 17, 3))
    keypoints[0, FILE_NAMES.index("left_shoulder")] = 10, 20, left
    keypoints[0, FILE_NAMES.index("right_shoulder")] = 30, 50, right
    neck = [20, 35, expected] if expected else [0, 0, 0]
    np.testing.assert_array_equal(COCO.to_network_order(keypoints)[0, KEYPOINTS.index("neck")], neck)


def test_channels_and_flips_follow_from_any_skeleton() -> None:
    table: dict[str, object] = {"keypoints": ["a_left", "a_right"], "derived": {"top": ["a_left", "a_right"]}}
    table |= {"channels": ["top", "a_left", "a_right"], "parts": [["top", "a_left"], ["top", "a_right"]]}
    small = skeleton_from_table(table | {"left_right": [["a_left", "a_right"]]})
    assert small.num_channels == 7
    np.testing.assert_array_equal(small.flip_channels, [1, 0, 2, 4, 3, 5, 6])
    joints = small.to_network_order(np.array([[[0, 0, 2], [4, 2, 1]]]))
    np.testing.assert_array_equal(joints, [[[2, 1, 1], [0, 0, 2], [4, 2, 1]]])


def test_a_network_fits_a_skeleton_with_other_sigmas_and_drawing() -> None:
    assert not COCO.changes_of_network(dataclasses.replace(COCO, sigmas=(0.1,) * 17, layout={}, drawn=()))
    assert COCO.changes_of_network(dataclasses.replace(COCO, parts=COCO.parts[::-1]))
    assert COCO.changes_of_network(dataclasses.replace(COCO, left_right=()))


FACE = ("nose", "right_eye", "left_eye", "right_ear", "left_ear")
LIMB_NAMES = [name for name in COCO.file_names if "shoulder" in name or "hip" in name or "knee" in name]


def make_skeleton(*keypoints: str) -> Skeleton:
    return skeleton_from_table({"keypoints": keypoints, "parts": [[keypoints[0], name] for name in keypoints[1:]]})


def random_joints(skeleton: Skeleton) -> np.ndarray:
    """Labelled joints of three people."""
    rng = np.random.default_rng(0)
    keypoints = rng.random((3, len(skeleton.file_keypoints), 3)) * 100
    keypoints[..., 2] = rng.integers(1, 3, keypoints.shape[:2])
    return skeleton.to_network_order(keypoints)


def test_keypoints_of_a_data_set_are_found_by_name() -> None:
    same = KeypointMapping(COCO, COCO)
    joints = random_joints(COCO)
    np.testing.assert_array_equal(same.map_joints(joints), joints)
    assert (same.missing, same.ignored) == ((), ()) and same.supervised_channels().all()
    source = make_skeleton(*LIMB_NAMES)
    mapping = KeypointMapping(source, COCO)
    joints = random_joints(source)
    mapped = mapping.map_joints(joints)
    for name in COCO.file_keypoints:
        expected = joints[:, source.index(name)] if name in LIMB_NAMES else np.zeros((3, 3))
        np.testing.assert_array_equal(mapped[:, COCO.index(name)], expected, name)
    assert mapping.missing == tuple(name for name in COCO.keypoints if name not in (*LIMB_NAMES, "neck"))
    assert mapping.ignored == ()


def test_they_are_found_in_another_spelling_but_derived_ones_are_derived() -> None:
    spelled = {"Nose": "nose", "L Knee": "left_knee", "R Knee": "right_knee"}
    spelled |= {"L Shoulder": "left_shoulder", "R Shoulder": "right_shoulder"}
    source = make_skeleton("Head Bottom", *spelled)
    mapping = KeypointMapping(source, COCO)
    joints = random_joints(source)
    mapped = mapping.map_joints(joints)
    for name, target in spelled.items():
        np.testing.assert_array_equal(mapped[:, COCO.index(target)], joints[:, source.index(name)], name)
    middle = (joints[:, source.index("L Shoulder"), :2] + joints[:, source.index("R Shoulder"), :2]) / 2
    np.testing.assert_allclose(mapped[:, COCO.index("neck"), :2], middle, rtol=1e-6)
    assert mapping.ignored == ("Head Bottom",)
    np.testing.assert_array_equal(KeypointMapping(COCO, source).map_joints(mapped)[:, 1:], joints[:, 1:])


def test_they_are_found_under_their_names_in_annotation_files() -> None:
    source = make_skeleton("front", "left_shoulder")
    table = {"keypoints": ["tip", "collar"], "parts": [["tip", "collar"]], "file_names": ["front", "kp_2"]}
    mapping = KeypointMapping(source, skeleton_from_table(table))
    joints = random_joints(source)
    np.testing.assert_array_equal(mapping.map_joints(joints)[:, 0], joints[:, 0])
    assert (mapping.missing, mapping.ignored) == (("collar",), ("left_shoulder",))
    assert mapping.has_common_keypoints and not KeypointMapping(make_skeleton("a", "b"), COCO).has_common_keypoints


def test_a_derived_keypoint_is_computed_if_both_of_its_sources_are_there() -> None:
    source = make_skeleton(*LIMB_NAMES)
    joints = random_joints(source)
    joints[1, source.index("left_shoulder")] = 0
    neck = KeypointMapping(source, COCO).map_joints(joints)[:, COCO.index("neck")]
    shoulders = joints[0, [source.index("left_shoulder"), source.index("right_shoulder")]]
    np.testing.assert_allclose(neck[0], [*shoulders[:, :2].mean(0), shoulders[:, 2].min()])
    assert neck[1].tolist() == [0, 0, 0]
    missing = KeypointMapping(make_skeleton("nose", "left_shoulder"), COCO).missing
    assert "neck" in missing and "left_shoulder" not in missing


def test_missing_keypoints_switch_off_their_maps_their_parts_and_the_foreground() -> None:
    source = make_skeleton(*(name for name in COCO.file_names if name not in FACE))
    mapping = KeypointMapping(source, COCO)
    assert set(mapping.missing) == set(FACE)
    parts = {"-".join(part) for part in COCO.parts if set(part) & set(FACE)}
    off = {name for name, supervised in zip(channel_names(), mapping.supervised_channels()) if not supervised}
    assert off == {*FACE, *parts, "foreground"}
