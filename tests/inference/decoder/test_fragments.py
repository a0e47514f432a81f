import numpy as np
import pytest

from posenet.inference.decoder.decode import assign_fragments
from posenet.skeleton import COCO
from tests.helpers.poses import ALL, FOREARM, MODEL, groups, upright


def assign(position, keypoint, score, label, limbs_are_complete=False):
    """The group that each keypoint belongs to after the assignment; groups need not be consecutive."""
    names, label = np.unique(label, return_inverse=True)
    z, scores = groups(position, keypoint, label, score)
    return names[assign_fragments(MODEL, z, scores, limbs_are_complete, 100)[label]]


@pytest.mark.parametrize("second_x, size", [(52, 9), (40, 5)])
def test_a_fragment_goes_to_the_person_with_the_lower_cost_of_the_docstring(second_x, size):
    """Both people lack a forearm, and one forearm lies between them, at many places."""
    people = np.stack([upright(30, 60, 10), upright(second_x, 60, size)])
    for x in np.linspace(24, 60, 13):
        z = np.zeros((3, 18), complex)
        z[:2] = people
        z[:2, FOREARM] = 0
        z[2, FOREARM] = (x + 55j, x + 62j)
        found = z != 0
        expected, sigma = MODEL.expect_keypoints(z[:2], found[:2])
        distance = np.abs(z[2, FOREARM] - expected[:, FOREARM])
        variance = sigma[:, FOREARM] ** 2
        cost = (distance**2 / variance).mean(axis=1) + np.log(variance).mean(axis=1)
        target = assign_fragments(MODEL, z, found.astype(float), None, 5)
        assert target[2] in (2, cost.argmin()) and target[:2].tolist() == [0, 1]
        if abs(x - 32) < 4 and second_x == 52:
            assert target[2] == 0


def test_a_fragment_whose_limb_would_be_visible_is_not_assigned_if_the_limbs_are_complete():
    """A body part should connect the forearm to the shoulder, but none connects the wrist alone to the person."""
    label = np.zeros(18, int)
    label[FOREARM] = 1
    position = upright(30, 60, 10)
    assigned = assign(position, ALL, np.ones(18), label, limbs_are_complete=True)
    np.testing.assert_array_equal(assigned, label)
    wrist = np.delete(ALL, FOREARM[0])
    assigned = assign(position[wrist], wrist, np.ones(17), label[wrist], limbs_are_complete=True)
    np.testing.assert_array_equal(assigned, np.zeros(17))


def test_a_fragment_that_has_received_another_one_is_not_assigned():
    """The knee fits the leg best. If the leg went to the person then, the knee would be left behind."""
    knee = COCO.index("left_knee")
    label = np.zeros(18, int)
    label[[COCO.index("left_hip"), COCO.index("left_ankle")]] = 1
    label[knee] = 2
    position = upright(30, 60, 10)
    np.testing.assert_array_equal(assign(position, ALL, np.ones(18), label), np.minimum(label, 1))
    rest = np.delete(ALL, knee)
    np.testing.assert_array_equal(assign(position[rest], rest, np.ones(17), label[rest]), np.zeros(17))


@pytest.mark.parametrize("misfit", ["far away", "much weaker", "with an elbow of the person"])
def test_fragments_that_do_not_fit_are_not_assigned(misfit):
    label = np.zeros(18, int)
    label[FOREARM] = 1
    position, scores, keypoint = upright(30, 60, 10), np.ones(18), ALL.copy()
    if misfit == "far away":
        position[FOREARM] += 80
    elif misfit == "much weaker":
        scores[FOREARM] = 0.2
    else:
        keypoint[FOREARM[0]] = COCO.index("right_elbow")
    np.testing.assert_array_equal(assign(position, keypoint, scores, label), label)
