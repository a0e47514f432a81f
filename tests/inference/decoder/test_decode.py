import dataclasses

import cv2
import numpy as np
import pytest
import torch

from posenet.data.targets import TargetRenderer
from posenet.inference.decoder.host_candidates import decode, find_limbs, find_peaks
from posenet.inference.decoder.people import MAX_LIMBS
from posenet.skeleton import COCO

SHAPELESS = dataclasses.replace(COCO, layout={})
"""The same skeleton, but nothing is known of how a body looks."""

STANDING = {
    "nose": (0, -90),
    "Reye": (-6, -97),
    "Leye": (6, -97),
    "Rear": (-14, -93),
    "Lear": (14, -93),
    "neck": (0, -62),
    "Rsho": (-26, -62),
    "Lsho": (26, -62),
    "Relb": (-40, -25),
    "Lelb": (40, -25),
    "Rwri": (-44, 12),
    "Lwri": (44, 12),
    "Rhip": (-17, 15),
    "Lhip": (17, 15),
    "Rkne": (-20, 70),
    "Lkne": (20, 70),
    "Rank": (-22, 125),
    "Lank": (22, 125),
}


def person(x, y, size=1.0, degrees=0.0):
    """(18, 3) joints of someone who stands at (x, y), in network-input pixels."""
    turn = np.deg2rad(degrees)
    matrix = size * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    points = np.array([STANDING[name] for name in COCO.keypoints]) @ matrix.T + (x, y)
    return np.concatenate([points, np.ones((18, 1))], axis=1).astype(np.float32)


def without(joints, *names):
    """The same person, some keypoints unlabelled."""
    joints[[COCO.index(name) for name in names]] = 0
    return joints


def render(*people, height=384, width=512):
    joints = torch.from_numpy(np.stack(people))[None] if people else torch.zeros(1, 0, 18, 3)
    return TargetRenderer.from_config(Config())(joints, torch.zeros(1, height // 4, width // 4))[0].numpy()


def lit(*cells, size=(32, 40)):
    """Maps with single cells: (keypoint, row, column, value)."""
    maps = np.zeros((50, *size), np.float32)
    maps[COCO.part_channels] = 1
    for name, row, column, value in cells:
        maps[COCO.num_parts + COCO.index(name), row, column] = value
    return maps


def match(found, people, tolerance):
    """Each person is found once, all keypoints within the tolerance."""
    assert len(found) == len(people)
    for joints in people:
        distances = [np.abs(one.keypoints[:, :2] - joints[:, :2]).max() for one in found]
        assert min(distances) <= tolerance
    assert all(one.found.all() for one in found)


@pytest.mark.parametrize(
    "place", [(250, 190, 1, 0), (247.3, 186.9, 1.2, 20), (300.6, 170.2, 0.7, -35), (201, 190, 1, 90)]
)
def test_rendered_person_comes_back(place):
    joints = person(*place)
    found = decode(render(joints))
    match(found, [joints], 0.5)
    assert found[0].score > 0.9


def test_subpixel_shift_keeps_its_axis():
    """A known fault of the original: x was refined by y's neighbours."""
    joints = person(250, 190)
    joints[:, 0] = np.round(joints[:, 0] / 4) * 4 + 1.5 + 1.6
    joints[:, 1] = np.round(joints[:, 1] / 4) * 4 + 1.5 - 1.2
    points = decode(render(joints))[0].keypoints
    np.testing.assert_allclose(points[:, 0], joints[:, 0], atol=0.2)
    np.testing.assert_allclose(points[:, 1], joints[:, 1], atol=0.2)


def test_flipped_maps_give_the_flipped_person():
    maps = render(person(230, 190, 1.1, 15))
    [straight] = decode(maps)
    [mirrored] = decode(np.ascontiguousarray(maps[COCO.flip_channels][:, :, ::-1]))
    back = mirrored.keypoints[COCO.flip_keypoints]
    back[:, 0] = maps.shape[2] * 4 - 1 - back[:, 0]
    np.testing.assert_allclose(back, straight.keypoints, atol=1e-3)


def test_people_who_cross_are_kept_apart():
    people = [person(230, 190), person(275, 195, 1.05), person(415, 180, 0.8, 10)]
    match(decode(render(*people)), people, 2.0)


def test_people_far_apart_in_size():
    people = [person(150, 190, 1.2), person(400, 300, 0.35)]
    found = decode(render(*people))
    assert len(found) == 2
    assert all(one.found.all() for one in found)


def test_torch_and_half_precision_maps():
    joints = person(250, 190)
    match(decode(torch.from_numpy(render(joints))), [joints], 0.5)
    match(decode(torch.from_numpy(render(joints)).half()), [joints], 0.7)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_a_cell_lies_at_the_centre_of_its_pixels(stride):
    [one] = decode(lit(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.5)), stride=stride)
    middle = (stride - 1) / 2
    np.testing.assert_allclose(one.keypoints[COCO.index("nose")], (9 * stride + middle, 7 * stride + middle, 1))
    np.testing.assert_allclose(one.keypoints[COCO.index("neck")], (9 * stride + middle, 20 * stride + middle, 0.5))
    assert one.found.sum() == 2
    assert one.score == pytest.approx(0.75 * (2 / 18) ** 0.5)


def test_corner_cells_are_found():
    [one] = decode(lit(("nose", 0, 0, 1.0), ("neck", 31, 39, 1.0)))
    np.testing.assert_allclose(one.keypoints[COCO.index("nose"), :2], (1.5, 1.5))
    np.testing.assert_allclose(one.keypoints[COCO.index("neck"), :2], (157.5, 125.5))


def test_a_plateau_is_one_peak_in_its_middle():
    maps = np.zeros((2, 20, 20), np.float32)
    maps[0, 4:6, 10:13] = 0.8
    maps[1, 0, 0] = maps[1, 19, 19] = 0.5
    peaks = find_peaks(maps, 0.1, 10)
    assert peaks.keypoint.tolist() == [0, 1, 1]
    np.testing.assert_allclose(peaks.xy[0], (11, 4.5))


def test_a_peak_inside_a_plateau_is_found_once():
    maps = np.full((1, 21, 21), 0.3, np.float32)
    maps[0, 6, 4] = 1
    peaks = find_peaks(maps, 0.1, 10)
    np.testing.assert_allclose(peaks.xy, [(4, 6), (10, 10)])


def test_only_the_strongest_peaks_are_kept():
    maps = np.zeros((1, 40, 40), np.float32)
    maps[0, ::4, ::4] = np.linspace(0.2, 1, 100).reshape(10, 10)
    peaks = find_peaks(maps, 0.1, 7)
    np.testing.assert_allclose(peaks.score, np.sort(maps.ravel())[::-1][:7])


def test_thresholds():
    maps = lit(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.3))
    assert [one.found.sum() for one in decode(maps)] == [2]
    assert [one.found.sum() for one in decode(maps, keypoint_threshold=0.31)] == [1]
    maps[COCO.part_channels] = 0.15
    assert [one.found.sum() for one in decode(maps, skeleton=SHAPELESS)] == [2]
    assert [one.found.sum() for one in decode(maps, part_threshold=0.2, skeleton=SHAPELESS)] == [1, 1]
    assert decode(maps, min_score=0.3) == []
    assert decode(maps, min_keypoints=3) == []


def test_a_limb_with_a_hole_loses():
    """The mean along the left limb is higher, but no part reaches all the way."""
    maps = lit(("nose", 16, 20, 1.0), ("neck", 16, 10, 1.0), ("neck", 16, 30, 1.0))
    maps[COCO.part_channels, :, 20:] = 0.7
    maps[COCO.part_channels, :, 13:16] = 0
    best = decode(maps)[0]
    assert best.keypoints[COCO.index("neck"), 0] == pytest.approx(30 * 4 + 1.5)


def test_a_limb_too_long_for_the_body_loses():
    """The left wrist answers more strongly at the far place, but the person is small."""
    joints = person(120, 190, 0.5)
    joints[COCO.index("Lwri")] = 0
    maps = render(joints)
    elbow = joints[COCO.index("Lelb"), :2]
    part, channel = COCO.parts.index(("Lelb", "Lwri")), COCO.num_parts + COCO.index("Lwri")
    row, near, far = round(elbow[1] / 4), round(elbow[0] / 4) + 5, 100
    maps[part, row - 2 : row + 3, near - 5 :] = 0.9
    maps[channel, row, near], maps[channel, row, far] = 0.75, 0.9
    assert decode(maps)[0].keypoints[COCO.index("Lwri"), 0] == pytest.approx(near * 4 + 1.5)
    assert decode(maps, skeleton=SHAPELESS)[0].keypoints[COCO.index("Lwri"), 0] == pytest.approx(far * 4 + 1.5)


def test_an_arm_without_its_shoulder_finds_its_person():
    """No part joins the forearm to the rest; it lies nearer to one knee of the other person than to its own hip."""
    people = [person(150, 190), person(300, 190)]
    people[0][[COCO.index("Lsho"), COCO.index("neck")], 2] = 0
    people[1][COCO.index("Lwri")] = people[1][COCO.index("Lelb")] = 0
    found = decode(render(*people))
    assert len(found) == 2
    for joints in people:
        one = min(found, key=lambda one: abs(one.keypoints[COCO.index("nose"), 0] - joints[COCO.index("nose"), 0]))
        np.testing.assert_array_equal(one.found, joints[:, 2] > 0)
    assert len(decode(render(*people), skeleton=SHAPELESS)) == 3


def test_a_weak_stray_is_nobody_s():
    maps = render(without(person(250, 190), "Lelb", "Lwri"))
    maps[COCO.num_parts + COCO.index("Lwri"), 50, 75] = 0.3
    assert [one.found.sum() for one in decode(maps)] == [16, 1]
    maps[COCO.num_parts + COCO.index("Lwri"), 50, 75] = 0.9
    assert [one.found.sum() for one in decode(maps)] == [17]


def test_best_limb_of_all_parts_is_joined_first():
    """The first part prefers the upper nose, but the eye links the right one to the neck by far better maps."""
    maps = lit(("neck", 20, 20, 1.0), ("nose", 10, 20, 1.0), ("nose", 20, 30, 1.0), ("Reye", 20, 34, 1.0))
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
    assert best.keypoints[COCO.index("nose"), 0] == pytest.approx(30 * 4 + 1.5)


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
def test_odd_maps_do_no_harm(maps):
    maps = maps.astype(np.float32)
    before = maps.copy()
    found = decode(maps)
    assert found == decode(maps)
    np.testing.assert_array_equal(maps, before)
    for one in found:
        assert np.isfinite(one.keypoints).all() and np.isfinite(one.score)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_person_is_found_beside_damage():
    maps = render(person(250, 190))
    maps[:, :8, :8] = np.nan
    maps[:, -1, -1] = np.inf
    assert decode(maps)[0].found.all() or decode(maps)[1].found.all()


def test_noise_is_bounded():
    noise = np.random.default_rng(0).random((50, 96, 96)).astype(np.float32)
    found = decode(noise, max_peaks=20)
    assert 0 < len(found) <= 18 * 20
    peaks = find_peaks(noise[COCO.keypoint_channels], 0.1, 20)
    assert 0 < len(find_limbs(noise[COCO.part_channels], peaks, 0.1, COCO).part) <= MAX_LIMBS


def test_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="50"):
        decode(np.zeros((18, 32, 32)))


def test_blurred_maps_keep_their_people():
    joints = person(250, 190)
    maps = np.stack([cv2.GaussianBlur(m, (0, 0), 1.5) for m in render(joints)])
    match(decode(maps), [joints], 2.5)
