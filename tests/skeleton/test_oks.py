"""The object keypoint similarity, as COCO defines it."""

import numpy as np
import pytest

from posenet.skeleton import COCO
from posenet.skeleton.oks import keypoint_similarity, mean_over_labelled, similar_distance

SIGMAS = np.array(COCO.sigmas)


def test_the_similarity_falls_with_the_distance_in_units_of_the_person() -> None:
    similarity = np.linspace(0.01, 1, 17)
    distance = similar_distance(similarity, np.array(900.0), SIGMAS)
    assert keypoint_similarity(distance**2, np.array(900.0), SIGMAS) == pytest.approx(similarity)
    # At the distance 2 sigma sqrt(area), the similarity is exp(-1/2).
    squares = (2 * SIGMAS) ** 2 * 500
    assert keypoint_similarity(squares, np.array(500.0), SIGMAS) == pytest.approx(np.full(17, np.exp(-0.5)))
    assert (keypoint_similarity(np.array([0.0, 1.0]), np.zeros(1), SIGMAS[:2]) == [1, 0]).all(), "an area of 0"


def test_the_oks_is_the_mean_over_labelled_keypoints() -> None:
    rng = np.random.default_rng(0)
    similarity = rng.random((200, 17))
    labelled = rng.random((200, 17)) < rng.random((200, 1))
    expected = [np.sum(row[chosen]) / chosen.sum() if chosen.any() else 0 for row, chosen in zip(similarity, labelled)]
    assert mean_over_labelled(similarity, labelled).tolist() == expected, "the same to the last bit"
