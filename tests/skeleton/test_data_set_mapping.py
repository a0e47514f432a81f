"""Mapping the keypoints of a data set to those of a network by their names."""

from __future__ import annotations

import numpy as np

from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import KeypointMapping
from posenet.skeleton.skeleton_file import skeleton_from_table

FACE = ("nose", "right_eye", "left_eye", "right_ear", "left_ear")
LIMB_NAMES = [name for name in COCO.file_names if "shoulder" in name or "hip" in name or "knee" in name]


def make_skeleton(*keypoints: str) -> Skeleton:
    return skeleton_from_table({"keypoints": keypoints, "parts": [[keypoints[0], name] for name in keypoints[1:]]})


def random_joints(skeleton: Skeleton, people: int = 3) -> np.ndarray:
    """Labelled joints of some people."""
    rng = np.random.default_rng(0)
    keypoints = rng.random((people, len(skeleton.file_keypoints), 3)) * 100
    keypoints[..., 2] = rng.integers(1, 3, keypoints.shape[:2])
    return skeleton.to_network_order(keypoints.astype(np.float32))


def test_keypoints_are_found_by_name() -> None:
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


def test_keypoints_are_found_in_another_spelling_but_derived_ones_are_derived() -> None:
    spelled = ("Nose", "Head Bottom", *(f"{side} {name}" for side in "LR" for name in ("Shoulder", "Hip", "Knee")))
    source = make_skeleton(*spelled)
    mapping = KeypointMapping(source, COCO)
    joints = random_joints(source)
    mapped = mapping.map_joints(joints)
    for name in ("L Shoulder", "R Knee", "Nose"):
        target = name.lower().replace("l ", "left_", 1).replace("r ", "right_", 1) if " " in name else "nose"
        np.testing.assert_array_equal(mapped[:, COCO.index(target)], joints[:, source.index(name)], name)
    middle = (joints[:, source.index("L Shoulder"), :2] + joints[:, source.index("R Shoulder"), :2]) / 2
    np.testing.assert_allclose(mapped[:, COCO.index("neck"), :2], middle, rtol=1e-6)
    assert mapping.ignored == ("Head Bottom",)
    back = KeypointMapping(COCO, source)
    np.testing.assert_array_equal(back.map_joints(mapped)[:, 2:], joints[:, 2:])


def test_keypoints_are_found_under_their_names_in_annotation_files() -> None:
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
    mapped = KeypointMapping(source, COCO).map_joints(joints)
    first = joints[0, [source.index("left_shoulder"), source.index("right_shoulder")]]
    np.testing.assert_allclose(mapped[0, COCO.index("neck"), :2], first[:, :2].mean(0))
    assert mapped[0, COCO.index("neck"), 2] == first[:, 2].min()
    assert mapped[1, COCO.index("neck")].tolist() == [0, 0, 0]
    missing = KeypointMapping(make_skeleton("nose", "left_shoulder"), COCO).missing
    assert "neck" in missing and "left_shoulder" not in missing


def test_missing_keypoints_switch_off_their_maps_their_parts_and_the_foreground() -> None:
    source = make_skeleton(*(name for name in COCO.file_names if name.split("_")[-1] not in ("nose", "eye", "ear")))
    mapping = KeypointMapping(source, COCO)
    assert set(mapping.missing) == set(FACE)
    parts = {"-".join(part) for part in COCO.parts if set(part) & set(FACE)}
    names = ["-".join(part) for part in COCO.parts] + list(COCO.keypoints) + ["mask", "foreground"]
    unsupervised = {name for name, supervised in zip(names, mapping.supervised_channels()) if not supervised}
    assert unsupervised == {*FACE, *parts, "foreground"}
