import numpy as np
import pytest

from posenet.inference.decoder.pose_model import (
    INDEPENDENT_VARIANCE,
    PART_CORRELATION,
    POSE_UNCERTAINTY,
    POSITION_EXPONENT,
    POSITION_VARIANCE,
    SIDE_CORRELATION,
    UPRIGHT_WEIGHT,
    PoseModel,
)
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.poses import ALL, MODEL, groups, upright


def test_the_estimate_is_the_regression_of_its_docstring():
    """Computed here with NumPy's own functions and a loop over all pairs. The second group has a single keypoint."""
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
    weight = 1 / spread**2
    mean_position, mean_height = np.average(position, weights=weight), np.average(height, weights=weight)
    covariance = np.average((height - mean_height) * (position - mean_position), weights=weight)
    direction = covariance + 1j * UPRIGHT_WEIGHT * scale
    axis = scale * direction / abs(direction)

    z, scores = groups(np.append(position, 5 + 5j), np.append(keypoint, 0), [0] * 6 + [1])
    origins, axes = MODEL.estimate_poses(z, scores > 0)
    np.testing.assert_allclose(axes, [[axis], [0]])
    np.testing.assert_allclose(origins, [[mean_position - axis * mean_height], [5 + 5j]])


def test_the_expected_keypoints_are_the_formula_of_the_docstring():
    """Computed here for one keypoint of one person, with the matrix of the found keypoints only."""
    found = np.array([COCO.index(name) for name in ("nose", "left_shoulder", "left_elbow", "right_hip", "left_knee")])
    wrist = COCO.index("left_wrist")
    position = upright(30, 60, 10, 0.2)[found] + np.array([1, 2j, -1, 1 + 1j, 3])
    z, scores = groups(position, found, np.zeros(5, int))
    [[origin]], [[axis]] = MODEL.estimate_poses(z, scores > 0)
    scale = abs(axis)
    deviation = (position - origin - axis * MODEL.height[found]) / scale
    inverse = np.linalg.inv(MODEL.covariance[np.ix_(found, found)])
    c = MODEL.covariance[wrist, found]
    mean = origin + axis * MODEL.height[wrist] + scale * (c @ inverse @ deviation)
    variance = MODEL.covariance[wrist, wrist] - c @ inverse @ c + POSE_UNCERTAINTY**2 / 5

    expected, sigma = MODEL.expect_keypoints(z, scores > 0)
    assert expected.shape == sigma.shape == (1, 18)
    assert expected[0, wrist] == pytest.approx(mean)
    assert sigma[0, wrist] == pytest.approx(scale * np.sqrt(variance))


def as_keypoints(position, score):
    """(P, K, 3) float32 keypoints of complex positions and scores."""
    return np.stack([position.real, position.imag, score], axis=2).astype(np.float32)


def test_the_refined_positions_are_the_formula_of_the_docstring():
    """Computed here for one person, with the matrix of the found keypoints only. Other groups have no influence."""
    found = np.array(
        [COCO.index(name) for name in ("nose", "neck", "left_shoulder", "left_elbow", "right_hip", "left_knee")]
    )
    position = upright(30, 60, 10, 0.2)[found] + np.array([1, 0.5, 2j, -1, 1 + 1j, 3])
    score = np.array([0.1, 0.3, 0.5, 0.7, 1, 1.2])
    z, scores = groups(
        np.append(position, [5, 9j]), np.append(found, [0, 1]), [0] * 6 + [1] * 2, np.append(score, [0.2, 0.2])
    )
    origin, axis = (of_groups[0] for of_groups in MODEL.estimate_poses(z, scores > 0))
    scale = abs(axis)
    deviation = (position - origin - axis * MODEL.height[found]) / scale
    error = np.diag(POSITION_VARIANCE * np.maximum(1 / score - 1, 0) ** POSITION_EXPONENT)
    covariance = MODEL.covariance[np.ix_(found, found)]
    truth = position + scale * (covariance @ np.linalg.inv(covariance + error) @ deviation - deviation)
    x, y, _ = np.moveaxis(MODEL.refine_keypoints(as_keypoints(z, scores)), 2, 0)
    np.testing.assert_allclose((x + 1j * y)[0, found], truth, rtol=1e-6)
    np.testing.assert_array_equal((x + 1j * y)[1, :2], [5, 9j])  # two keypoints are too few


def test_the_covariance_of_the_deviations_is_that_of_the_docstring():
    """Computed here with the distances by a search from each keypoint. The neck is derived; see above."""
    side = np.array([name.startswith("left") - name.startswith("right") for name in COCO.keypoints])
    parts = [*COCO.part_ends.tolist(), *COCO.part_ends[:, ::-1].tolist()]
    distance = np.full((len(side), len(side)), np.inf)
    for start in ALL:
        distance[start, start] = 0
        reached = [start]
        for k in reached:
            for other in [b for a, b in parts if a == k and side[a] * side[b] != -1 and b not in reached]:
                distance[start, other] = distance[start, k] + 1
                reached.append(other)
    rest = np.sqrt(1 - SIDE_CORRELATION * np.abs(side))
    correlation = SIDE_CORRELATION * np.outer(side, side) + np.outer(rest, rest) * PART_CORRELATION**distance
    covariance = (correlation + INDEPENDENT_VARIANCE * np.eye(len(side))) * np.outer(MODEL.spread, MODEL.spread)
    others = np.ix_(*[np.delete(ALL, COCO.index("neck"))] * 2)
    np.testing.assert_allclose(MODEL.covariance[others], covariance[others])


def test_many_circles_of_body_parts_make_no_negative_variances():
    """The powers of the distances are no correlations if each of four keypoints is connected to each of four others."""
    names = [*"abcdefgh"]
    parts = [[a, b] for a in "abcd" for b in "efgh"]
    layout = {name: [index / 5, 0.5] for index, name in enumerate(names)}
    model = PoseModel(skeleton_from_table({"keypoints": names, "parts": parts, "layout": layout}))
    assert 0 < np.linalg.eigvalsh(model.covariance).min() < 0.1
