"""``decode``: from rendered and made-up maps to people."""

import dataclasses
import re
import resource

import cv2
import numpy as np
import pytest
import torch

from posenet.errors import DataError
from posenet.inference.decoder.decode import decode
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import maps_with_cells, render_people, standing_person

WITHOUT_LAYOUT = dataclasses.replace(COCO, layout={})
"""The same skeleton without a pose model."""
NOSE = COCO.index("nose")
NECK = COCO.index("neck")


def assert_all_found(found, people, tolerance):
    """Each person is found once, with all keypoints within ``tolerance`` pixels."""
    assert len(found) == len(people)
    for joints in people:
        distances = [np.abs(one.keypoints[:, :2] - joints[:, :2]).max() for one in found]
        assert min(distances) <= tolerance
    assert all(one.found.all() for one in found)


@pytest.mark.parametrize(
    "people, tolerance",
    [
        ([(247.3, 186.9, 1.2, 20)], 0.5),
        ([(300.6, 170.2, 0.7, -35)], 0.5),
        ([(201, 190, 1, 90)], 0.5),
        ([(150, 190, 1.2), (400, 300, 0.35)], 4),
        ([(230, 190), (275, 195, 1.05), (415, 180, 0.8, 10)], 2),
    ],
)
def test_rendered_people_are_found(people, tolerance):
    """The last ones overlap."""
    joints = [standing_person(*person) for person in people]
    maps = render_people(*joints)
    found = decode(maps)
    assert_all_found(found, joints, tolerance)
    assert found[0].score > 0.9
    assert decode(torch.from_numpy(maps)) == found
    assert_all_found(decode(torch.from_numpy(maps).half()), joints, tolerance + 0.2)


@pytest.mark.parametrize("stride", [1, 4])
def test_keypoints_lie_at_the_centres_of_cells(stride):
    [one] = decode(maps_with_cells(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.5)), stride=stride)
    centre = (stride - 1) / 2
    np.testing.assert_allclose(one.keypoints[NOSE], (9 * stride + centre, 7 * stride + centre, 1))
    np.testing.assert_allclose(one.keypoints[NECK], (9 * stride + centre, 20 * stride + centre, 0.5))
    assert one.found.sum() == 2
    assert one.score == pytest.approx(0.75 * (2 / 18) ** 0.5)


def test_thresholds_drop_keypoints_limbs_and_people():
    maps = maps_with_cells(("nose", 7, 9, 1.0), ("neck", 20, 9, 0.3))
    assert [one.found.sum() for one in decode(maps)] == [2]
    assert [one.found.sum() for one in decode(maps, keypoint_threshold=0.31)] == [1]
    for response, count in ((0.11, [2]), (0.09, [1, 1])):
        maps[COCO.part_channels] = response
        assert [one.found.sum() for one in decode(maps, skeleton=WITHOUT_LAYOUT)] == count
    assert decode(maps_with_cells(("nose", 7, 9, 0.2))) == []


def test_a_weak_keypoint_moves_towards_the_rest_of_its_person():
    """The response of the eye is weak and 12 pixels too far to the left."""
    joints = standing_person(250, 190)
    eye = COCO.index("right_eye")
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "maps",
    [
        np.zeros((50, 32, 32)),
        np.full((50, 32, 32), 0.5),
        np.ones((50, 32, 32)),
        np.full((50, 16, 16), 1e30),
        np.ones((50, 1, 1)),
        np.ones((50, 1, 40)),
        np.random.default_rng(0).standard_normal((50, 32, 32)) * 0.3,
        np.where(np.random.default_rng(1).random((50, 32, 32)) < 0.1, -1e30, 0.4),
    ],
    ids="zero flat saturated huge cell line noise holes".split(),
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("place", [(41, 3, 5), slice(0, 30)], ids=["a cell of a keypoint map", "body-part maps"])
def test_maps_with_values_that_are_not_finite_are_refused(value, place):
    maps = render_people(standing_person(250, 190)).astype(np.float64)
    maps[place] = value
    for given in (maps, torch.from_numpy(maps), maps[:, :, :-1]):
        with pytest.raises(DataError, match="NaN or infinite") as error:
            decode(given)
    assert "amp off" in str(error.value) and "\n" not in str(error.value)


def test_every_person_of_a_crowd_is_found():
    rng = np.random.default_rng(200)
    places = [(80 + 100 * (index % 20), 120 + 240 * (index // 20)) for index in range(200)]
    people = [standing_person(*(place + rng.uniform(-15, 15, 2)), degrees=rng.uniform(-10, 10)) for place in places]
    found = decode(render_people(*people, size=(610, 520)))
    assert_all_found(found, people, 4)


def test_a_large_person_in_front_of_a_crowd_is_found():
    """Dozens of short pairs lie around the ends of every limb of the large person."""
    rng = np.random.default_rng(0)
    places = [(60 + 80 * (index % 10), 60 + 110 * (index // 10)) for index in range(70)]
    crowd = [standing_person(*(place + rng.uniform(-9, 9, 2)), size=0.4) for place in places]
    large = standing_person(400, 380, size=2.5)
    found = decode(render_people(large, *crowd, size=(200, 210)))
    num_near = [np.count_nonzero(np.abs(one.keypoints - large)[:, :2].max(1) < 10) for one in found]
    assert max(num_near) >= 15


def test_noise_gives_nobody_a_high_score_and_has_few_people():
    """Also where every cell of every map is high."""
    for mean in (0.1, 0.5):
        noise = np.random.default_rng(0).normal(0, 1, (50, 64, 80)).astype(np.float32)
        smooth = np.stack([cv2.GaussianBlur(channel, (0, 0), 1.5) for channel in noise])
        people = decode(np.clip(mean + 0.2 * smooth / smooth.std(), 0, 1))
        assert 0 < len(people) <= 64 * 80 / 40
        assert people[0].score < 0.3


def test_noise_needs_little_memory_and_is_cut_off():
    """Each map has some 600 peaks, and their pairs are some ten million."""
    maps = np.random.default_rng(0).random((50, 72, 76)).astype(np.float32)
    before = _largest_memory()
    assert decode(maps)
    assert _largest_memory() - before < 300 * 1024


def _largest_memory():
    """The largest memory of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_scores_stay_in_their_order_and_at_most_1_where_maps_exceed_1():
    maps = maps_with_cells(("nose", 3, 3, 1.9), ("nose", 20, 20, 1.5), ("nose", 28, 30, 0.5))
    found = decode(maps)
    assert [one.keypoints[NOSE, 2] for one in found] == [1, 1, 0.5]
    full = decode(1.9 * np.clip(render_people(standing_person(150, 190), standing_person(380, 190)), 0, 1))
    assert [len(full), full[0].score <= 1, full[1].score > 0.99] == [2, True, True]
    assert decode(0.8 * render_people(standing_person(250, 190)))[0].score == pytest.approx(0.8, abs=0.02)


def test_maps_of_noise_are_decoded_without_the_pose_model():
    """It would take long, and there is no person whom it could complete."""
    maps = np.random.default_rng(0).random((50, 64, 64), np.float32)
    for one, other in zip(decode(maps), decode(maps, skeleton=WITHOUT_LAYOUT), strict=True):
        np.testing.assert_array_equal(one.keypoints, other.keypoints)


def test_maps_from_which_nobody_is_decoded_may_be_missing():
    maps = render_people(standing_person(150, 190), standing_person(380, 190))
    people = decode(maps)
    assert len(people) == 2 and decode(maps[:-2]) == people


@pytest.mark.parametrize(
    "maps, arguments, message",
    [
        (np.zeros((50, 4, 4)), {"stride": 0}, "at least 1"),
        (np.zeros((50, 4, 4)), {"keypoint_threshold": 0}, "must be above 0"),
        (np.zeros((18, 32, 32)), {}, "must be (50, h, w) floating-point numbers, not (18, 32, 32) of float64"),
        (np.zeros((50, 1, 32, 32)), {}, "not (50, 1, 32, 32)"),
        (np.zeros((50, 0, 0)), {}, "not (50, 0, 0)"),
        (torch.zeros((50, 8, 8), dtype=torch.int64), {}, "not (50, 8, 8) of int64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(maps, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(maps, **arguments)
