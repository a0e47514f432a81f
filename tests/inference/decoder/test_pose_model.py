import numpy as np
import pytest

from posenet.inference.decoder.pose_model import (
    LOG_SCALE_SIGMA,
    MAX_LENGTH_PENALTY,
    POSE_UNCERTAINTY,
    SPREAD_FLOOR,
    UPRIGHT_WEIGHT,
    PoseModel,
)
from posenet.skeleton import COCO

MODEL = PoseModel(COCO)
ALL = np.arange(COCO.num_keypoints)
FOREARM = [COCO.index("Lelb"), COCO.index("Lwri")]


def upright(x, y, torso, turn=0.0):
    """(K,) complex positions of a person as in the layout, with the spread to the sides and the head above."""
    side = np.array([-1 if name[0] == "R" else name[0] == "L" for name in COCO.keypoints])
    return x + 1j * y + torso * np.exp(1j * turn) * (1j * MODEL.height + side * MODEL.spread)


def test_poses_of_two_people_are_estimated():
    position = np.concatenate([upright(50, 60, 10), upright(20, 30, 4, 0.3)])
    poses = MODEL.estimate_poses(position, np.tile(ALL, 2), np.repeat([0, 1], 18))
    np.testing.assert_allclose(poses.scale, (10, 4), rtol=0.1)
    np.testing.assert_allclose(poses.origin, (50 + 60j, 20 + 30j), atol=1)
    np.testing.assert_allclose(np.angle(poses.axis), (np.pi / 2, np.pi / 2 + 0.3), atol=0.1)
    assert poses.count.tolist() == [18, 18]


def test_the_estimate_is_the_regression_of_its_docstring():
    """Computed here with NumPy's own functions and a loop over all pairs."""
    rng = np.random.default_rng(0)
    keypoint = np.array([0, 3, 4, 8, 9, 13])
    position = rng.uniform(0, 50, 6) + 1j * rng.uniform(0, 50, 6)
    height, spread = MODEL.height[keypoint], MODEL.spread[keypoint]
    observed = expected = 0.0
    for i in range(6):
        for j in range(i):
            observed += abs(position[i] - position[j]) ** 2
            expected += (height[i] - height[j]) ** 2 + spread[i] ** 2 + spread[j] ** 2
    scale = np.sqrt(observed / expected)
    weight = 1 / (spread**2 + SPREAD_FLOOR)
    mean_position, mean_height = np.average(position, weights=weight), np.average(height, weights=weight)
    covariance = np.average((height - mean_height) * (position - mean_position), weights=weight)
    direction = covariance + 1j * UPRIGHT_WEIGHT * scale
    axis = scale * direction / abs(direction)

    poses = MODEL.estimate_poses(position, keypoint, np.zeros(6, int))
    np.testing.assert_allclose(poses.scale, [scale])
    np.testing.assert_allclose(poses.axis, [axis])
    np.testing.assert_allclose(poses.origin, [mean_position - axis * mean_height])


def test_a_single_keypoint_has_no_scale_and_is_its_own_origin():
    poses = MODEL.estimate_poses(np.array([5 + 5j]), np.array([0]), np.array([0]))
    assert poses.scale[0] == 0 and poses.origin[0] == 5 + 5j


@pytest.mark.filterwarnings("error")
def test_labels_need_not_be_consecutive():
    poses = MODEL.estimate_poses(upright(50, 60, 10), ALL, np.full(18, 4))
    assert poses.scale[4] > 8 and np.isfinite(poses.origin).all()


def test_limbs_too_long_for_their_person_lose_score():
    thigh = np.full(4, COCO.parts.index(("Lhip", "Lkne")))
    factor = MODEL.length_factor(np.array([4.0, 9, 30, 27]), thigh, np.array([10.0, 10, 10, 30]))
    assert factor[0] == factor[1] == factor[3] == 1
    assert factor[2] == pytest.approx(1 - MAX_LENGTH_PENALTY)


def test_fragments_are_assigned_to_the_person_they_fit():
    """Two people side by side, each with a forearm that no limb connects."""
    position = np.concatenate([upright(30, 60, 10), upright(75, 60, 10)])
    label = np.repeat([0, 18], 18)
    label[FOREARM] = 1
    label[[18 + k for k in FOREARM]] = 19
    assigned = MODEL.assign_fragments(position, np.tile(ALL, 2), np.ones(36), label)
    assert assigned.tolist() == [0] * 18 + [18] * 18


def test_the_cost_of_an_assignment_is_the_formula_of_its_docstring():
    """A person without left arm and left ankle; the forearm and the ankle are fragments."""
    ankle = [COCO.index("Lank")]
    label = np.zeros(18, int)
    label[FOREARM] = 1
    label[ankle] = 2
    position = upright(30, 60, 10, 0.2)
    position[FOREARM] += [2 + 1j, 3]
    position[ankle] += 4
    poses = MODEL.estimate_poses(position, ALL, label)
    costs = MODEL._assignment_costs(position, ALL, np.ones(18), label)
    assert costs.people.tolist() == [0, 1] and costs.fragments.tolist() == [0, 1, 2]
    for row, members in ((1, FOREARM), (2, ankle)):
        height, spread = MODEL.height[members], MODEL.spread[members]
        variance = poses.scale[0] ** 2 * (spread**2 + POSE_UNCERTAINTY**2 / 15)
        deviation = position[members] - poses.origin[0] - poses.axis[0] * height
        expected = np.mean(np.abs(deviation) ** 2 / variance) + np.mean(np.log(variance))
        if len(members) > 1:
            expected += np.log(poses.scale[row] / poses.scale[0]) ** 2 / (2 * LOG_SCALE_SIGMA**2)
        assert costs.cost[row, 0] == pytest.approx(expected)
    assert np.isinf(costs.cost[0]).all()  # the largest group is no fragment of another, nor of itself


def far_away(position, scores):
    position[FOREARM] += 80
    return position, scores


def much_weaker(position, scores):
    scores[FOREARM] = 0.2
    return position, scores


def much_larger(position, scores):
    elbow, wrist = FOREARM
    position[wrist] = position[elbow] + 30 * (position[wrist] - position[elbow])
    return position, scores


@pytest.mark.parametrize("change", [far_away, much_weaker, much_larger])
def test_fragments_that_do_not_fit_are_not_assigned(change):
    label = np.zeros(18, int)
    label[FOREARM] = 1
    position, scores = change(upright(30, 60, 10), np.ones(18))
    np.testing.assert_array_equal(MODEL.assign_fragments(position, ALL, scores, label), label)


def test_fragments_with_a_keypoint_of_the_person_are_not_assigned():
    label = np.zeros(18, int)
    label[FOREARM] = 1
    keypoint = np.where(COCO.index("Lelb") == ALL, COCO.index("Relb"), ALL)
    position = upright(30, 60, 10)
    np.testing.assert_array_equal(MODEL.assign_fragments(position, keypoint, np.ones(18), label), label)
    assert not MODEL._assignment_costs(position, keypoint, np.ones(18), label).cost.size


@pytest.mark.filterwarnings("error")
def test_a_person_whose_keypoints_coincide_receives_no_fragment():
    """Its scale is 0, so every distance is too far."""
    keypoint = np.array([COCO.index(name) for name in ("nose", "neck", "Lwri")])
    position = np.array([3 + 4j, 3 + 4j, 30 + 4j])
    label = np.array([0, 0, 1])
    assert MODEL.estimate_poses(position, keypoint, label).scale[0] == 0
    np.testing.assert_array_equal(MODEL.assign_fragments(position, keypoint, np.ones(3), label), label)


def test_the_score_of_a_limb_falls_linearly_with_the_excess_of_its_length():
    parts = np.repeat(np.arange(COCO.num_parts), 4)
    scale = np.tile([0.5, 2.0, 10.0, 40.0], COCO.num_parts)
    a, b = COCO.part_ends[parts].T
    squared = (MODEL.height[a] - MODEL.height[b]) ** 2 + MODEL.spread[a] ** 2 + MODEL.spread[b] ** 2 + 0.5**2
    expected_length = scale * np.sqrt(squared)
    for ratio, factor in ((0.5, 1.0), (1.0, 1.0), (1.25, 0.85), (1.5, 0.7), (2.0, 0.4), (9.0, 0.4)):
        np.testing.assert_allclose(MODEL.length_factor(ratio * expected_length, parts, scale), factor)


def test_only_the_40_people_with_the_highest_scores_receive_fragments():
    """The forearm of every person is a fragment; people that come later have lower scores."""
    position = np.concatenate([upright(100 * number, 60, 10) for number in range(42)])
    label = np.repeat(2 * np.arange(42), 18).reshape(42, 18)
    label[:, FOREARM] += 1
    score = np.repeat(np.linspace(1, 0.9, 42), 18)
    assigned = MODEL.assign_fragments(position, np.tile(ALL, 42), score, label.ravel()).reshape(42, 18)
    assert (assigned[:40] == assigned[:40, :1]).all()
    np.testing.assert_array_equal(assigned[40:], label[40:])
