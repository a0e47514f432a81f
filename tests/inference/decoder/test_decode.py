"""``decode``: from rendered and made-up maps to people."""

import dataclasses

import cv2
import numpy as np
import pytest
import torch

from posenet.inference.decoder.decode import decode
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import maps_with_cells, render_people, standing_person

WITHOUT_LAYOUT = dataclasses.replace(COCO, layout={})
"""The same skeleton without a pose model."""
NOSE = COCO.index("nose")
NECK = COCO.index("neck")


def without(joints, *names):
    """The person with some keypoints unlabelled."""
    joints[[COCO.index(name) for name in names]] = 0
    return joints


def assert_all_found(found, people, tolerance):
    """Each person is found once, with all keypoints within ``tolerance`` pixels."""
    assert len(found) == len(people)
    for joints in people:
        distances = [np.abs(one.keypoints[:, :2] - joints[:, :2]).max() for one in found]
        assert min(distances) <= tolerance
    assert all(one.found.all() for one in found)


@pytest.mark.parametrize(
    ("x", "y", "size", "degrees"),
    [(250, 190, 1, 0), (247.3, 186.9, 1.2, 20), (300.6, 170.2, 0.7, -35), (201, 190, 1, 90)],
)
def test_a_rendered_person_is_found(x, y, size, degrees):
    joints = standing_person(x, y, size, degrees)
    found = decode(render_people(joints))
    assert_all_found(found, [joints], 0.5)
    assert found[0].score > 0.9


def test_x_and_y_are_refined_separately():
    """The original recipe refines x with the neighbours above and below."""
    joints = standing_person(250, 190)
    joints[:, 0] = np.round(joints[:, 0] / 4) * 4 + 1.5 + 1.6
    joints[:, 1] = np.round(joints[:, 1] / 4) * 4 + 1.5 - 1.2
    points = decode(render_people(joints))[0].keypoints
    np.testing.assert_allclose(points[:, 0], joints[:, 0], atol=0.2)
    np.testing.assert_allclose(points[:, 1], joints[:, 1], atol=0.2)


def test_flipped_maps_yield_the_flipped_person():
    maps = render_people(standing_person(230, 190, 1.1, 15))
    [straight] = decode(maps)
    [mirrored] = decode(np.ascontiguousarray(maps[COCO.flip_channels][:, :, ::-1]))
    back = mirrored.keypoints[COCO.flip_keypoints]
    back[:, 0] = maps.shape[2] * 4 - 1 - back[:, 0]
    np.testing.assert_allclose(back, straight.keypoints, atol=1e-3)


def test_overlapping_people_are_separated():
    people = [standing_person(230, 190), standing_person(275, 195, 1.05), standing_person(415, 180, 0.8, 10)]
    assert_all_found(decode(render_people(*people)), people, 2.0)


def test_people_of_different_sizes_are_found():
    people = [standing_person(150, 190, 1.2), standing_person(400, 300, 0.35)]
    found = decode(render_people(*people))
    assert len(found) == 2
    assert all(one.found.all() for one in found)


def test_maps_may_be_tensors_and_half_precision():
    joints = standing_person(250, 190)
    assert_all_found(decode(torch.from_numpy(render_people(joints))), [joints], 0.5)
    assert_all_found(decode(torch.from_numpy(render_people(joints)).half()), [joints], 0.7)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_keypoints_lie_at_the_centres_of_cells(stride):
    [one] = decode(maps_with_cells(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.5)), stride=stride)
    centre = (stride - 1) / 2
    np.testing.assert_allclose(one.keypoints[NOSE], (9 * stride + centre, 7 * stride + centre, 1))
    np.testing.assert_allclose(one.keypoints[NECK], (9 * stride + centre, 20 * stride + centre, 0.5))
    assert one.found.sum() == 2
    assert one.score == pytest.approx(0.75 * (2 / 18) ** 0.5)


def test_keypoints_in_corner_cells_are_found():
    [one] = decode(maps_with_cells(("nose", 0, 0, 1.0), ("neck", 31, 39, 1.0)))
    np.testing.assert_allclose(one.keypoints[NOSE, :2], (1.5, 1.5))
    np.testing.assert_allclose(one.keypoints[NECK, :2], (157.5, 125.5))


def test_thresholds_drop_keypoints_limbs_and_people():
    maps = maps_with_cells(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.3))
    assert [one.found.sum() for one in decode(maps)] == [2]
    assert [one.found.sum() for one in decode(maps, keypoint_threshold=0.31)] == [1]
    maps[COCO.part_channels] = 0.15
    assert [one.found.sum() for one in decode(maps, skeleton=WITHOUT_LAYOUT)] == [2]
    assert [one.found.sum() for one in decode(maps, part_threshold=0.2, skeleton=WITHOUT_LAYOUT)] == [1, 1]
    assert decode(maps, min_score=0.3) == []
    assert decode(maps, min_keypoints=3) == []


def test_an_interrupted_limb_loses():
    """The mean along the left limb is higher, but its map is 0 on a stretch of it."""
    maps = maps_with_cells(("nose", 16, 20, 1.0), ("neck", 16, 10, 1.0), ("neck", 16, 30, 1.0))
    maps[COCO.part_channels, :, 20:] = 0.7
    maps[COCO.part_channels, :, 13:16] = 0
    best = decode(maps)[0]
    assert best.keypoints[NECK, 0] == pytest.approx(30 * 4 + 1.5)


def test_a_limb_too_long_for_its_person_loses():
    """The response of the left wrist is stronger at the far cell, but the person is small."""
    wrist = COCO.index("Lwri")
    joints = without(standing_person(120, 190, 0.5), "Lwri")
    maps = render_people(joints)
    elbow = joints[COCO.index("Lelb"), :2]
    part = COCO.parts.index(("Lelb", "Lwri"))
    row = round(elbow[1] / 4)
    near = round(elbow[0] / 4) + 5
    far = 100
    maps[part, row - 2 : row + 3, near - 5 :] = 0.9
    maps[COCO.num_parts + wrist, row, near] = 0.75
    maps[COCO.num_parts + wrist, row, far] = 0.9
    assert decode(maps)[0].keypoints[wrist, 0] == pytest.approx(near * 4 + 1.5, abs=0.2)
    assert decode(maps, skeleton=WITHOUT_LAYOUT)[0].keypoints[wrist, 0] == pytest.approx(far * 4 + 1.5)


def test_a_forearm_without_its_shoulder_is_assigned_to_its_person():
    """No body part connects the forearm to the rest. It lies nearer to the other person's knee than to its own hip."""
    people = [
        without(standing_person(150, 190), "Lsho", "neck"),
        without(standing_person(300, 190), "Lwri", "Lelb"),
    ]
    found = decode(render_people(*people))
    assert len(found) == 2
    for joints in people:
        nearest = min(found, key=lambda one: abs(one.keypoints[NOSE, 0] - joints[NOSE, 0]))
        np.testing.assert_array_equal(nearest.found, joints[:, 2] > 0)
    assert len(decode(render_people(*people), skeleton=WITHOUT_LAYOUT)) == 3


def test_a_single_keypoint_is_assigned_only_if_it_is_strong():
    maps = render_people(without(standing_person(250, 190), "Lelb", "Lwri"))
    wrist_map = maps[COCO.num_parts + COCO.index("Lwri")]
    wrist_map[50, 75] = 0.3
    assert [one.found.sum() for one in decode(maps)] == [16, 1]
    wrist_map[50, 75] = 0.9
    assert [one.found.sum() for one in decode(maps)] == [17]


def test_a_weak_keypoint_moves_towards_the_rest_of_its_person():
    """The response of the eye is weak and 12 pixels too far to the left."""
    joints = standing_person(250, 190)
    eye = COCO.index("Reye")
    x, y = joints[eye, :2].copy()
    moved = joints.copy()
    moved[eye, 0] -= 12
    maps = render_people(moved)
    maps[COCO.num_parts + eye] *= 0.3
    refined = decode(maps)[0].keypoints[eye]
    assert x - 11 < refined[0] < x
    assert refined[1] == pytest.approx(y, abs=4) and refined[2] == pytest.approx(0.3, abs=0.02)
    peak = decode(maps, skeleton=WITHOUT_LAYOUT)[0].keypoints[eye]
    assert peak[0] == pytest.approx(x - 12, abs=0.5)


def test_the_order_of_the_body_parts_does_not_matter():
    """The first body part favours the upper nose, but the eye connects the right one to the neck with better limbs."""
    maps = maps_with_cells(("neck", 20, 20, 1.0), ("nose", 10, 20, 1.0), ("nose", 20, 30, 1.0), ("Reye", 20, 34, 1.0))
    neck_nose, neck_eye, nose_eye = (
        COCO.parts.index(part) for part in (("neck", "nose"), ("neck", "Reye"), ("nose", "Reye"))
    )
    maps[neck_nose] = 0.5
    maps[neck_nose, :20] = 0.7
    maps[neck_eye, 20] = 0.9
    maps[nose_eye] = 0
    maps[nose_eye, 20, 30:] = 0.8
    best = decode(maps)[0]
    assert best.found.sum() == 3
    assert best.keypoints[NOSE, 0] == pytest.approx(30 * 4 + 1.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "maps",
    [
        np.zeros((50, 32, 32)),
        np.full((50, 32, 32), np.nan),
        np.full((50, 32, 32), np.inf),
        np.full((50, 32, 32), -np.inf),
        np.full((50, 32, 32), 0.5),
        np.ones((50, 32, 32)),
        np.full((50, 16, 16), 1e30),
        np.zeros((50, 0, 0)),
        np.ones((50, 1, 1)),
        np.ones((50, 1, 40)),
        np.random.default_rng(0).standard_normal((50, 32, 32)) * 0.3,
        np.where(np.random.default_rng(1).random((50, 32, 32)) < 0.1, np.nan, 0.4),
    ],
    ids="zero nan inf -inf flat saturated huge empty cell line noise holes".split(),
)
def test_unusual_maps_yield_finite_people_in_order(maps):
    maps = maps.astype(np.float32)
    before = maps.copy()
    found = decode(maps)
    assert found == decode(maps)
    np.testing.assert_array_equal(maps, before)
    for one in found:
        assert np.isfinite(one.keypoints).all() and np.isfinite(one.score)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_person_is_found_beside_invalid_cells():
    maps = render_people(standing_person(250, 190))
    maps[:, :8, :8] = np.nan
    maps[:, -1, -1] = np.inf
    assert decode(maps)[0].found.all() or decode(maps)[1].found.all()


def test_noise_yields_a_bounded_number_of_people():
    noise = np.random.default_rng(0).random((50, 96, 96)).astype(np.float32)
    assert 0 < len(decode(noise, max_peaks=20)) <= 18 * 20


def test_maps_of_another_skeleton_are_refused():
    with pytest.raises(ValueError, match="50"):
        decode(np.zeros((18, 32, 32)))


def test_a_person_is_found_in_blurred_maps():
    joints = standing_person(250, 190)
    maps = np.stack([cv2.GaussianBlur(m, (0, 0), 1.5) for m in render_people(joints)])
    assert_all_found(decode(maps), [joints], 2.5)


def test_maps_of_a_batch_are_refused():
    with pytest.raises(ValueError, match=r"maps must be \(50, h, w\), not \(50, 1, 32, 32\)"):
        decode(np.zeros((50, 1, 32, 32)))


def test_the_40_strongest_candidates_of_a_keypoint_are_used_by_default():
    """All peaks are noses, so each candidate is a person."""
    maps = np.zeros((50, 32, 32), np.float32)
    scores = np.linspace(0.5, 1, 49)
    maps[COCO.num_parts + NOSE, 2:30:4, 2:30:4] = scores.reshape(7, 7)
    found = [one.keypoints[NOSE, 2] for one in decode(maps)]
    np.testing.assert_allclose(found, scores[::-1][:40])
