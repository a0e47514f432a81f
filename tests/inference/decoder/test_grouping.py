import numpy as np

from posenet.inference.decoder.grouping import join


def groups(keypoint, limbs, evidence):
    """The members of every group."""
    label = join(np.array(keypoint), np.array(limbs).reshape(-1, 2), np.array(evidence, float))
    return sorted(np.flatnonzero(label == one).tolist() for one in np.unique(label))


def test_limbs_chain_into_one_group():
    assert groups([0, 1, 2, 3], [(0, 1), (1, 2)], [0.5, 0.4]) == [[0, 1, 2], [3]]


def test_nobody_has_a_keypoint_twice():
    assert groups([0, 1, 1], [(0, 1), (0, 2)], [0.5, 0.6]) == [[0, 2], [1]]
    assert groups([0, 1, 2, 0], [(0, 1), (1, 2), (2, 3)], [0.9, 0.5, 0.8]) == [[0, 1], [2, 3]]


def test_several_limbs_outvote_a_better_one():
    """Row 4 hangs on row 0 by the best single limb, but its like, row 3, has two."""
    keypoint = [0, 1, 2, 3, 3]
    limbs, evidence = [(0, 1), (0, 2), (1, 2), (0, 4), (1, 3), (2, 3)], [0.9, 0.9, 0.9, 0.6, 0.4, 0.4]
    assert groups(keypoint, limbs, evidence) == [[0, 1, 2, 3], [4]]


def test_no_candidates_and_no_limbs():
    assert groups([], [], []) == []
    assert groups([0, 0, 1], [], []) == [[0], [1], [2]]


def test_the_order_of_limbs_does_not_matter():
    rng = np.random.default_rng(0)
    keypoint = np.sort(rng.integers(0, 6, 30))
    limbs = np.array([(a, b) for a in range(30) for b in range(a) if keypoint[a] != keypoint[b]])
    evidence = rng.random(len(limbs))
    order = rng.permutation(len(limbs))
    assert groups(keypoint, limbs, evidence) == groups(keypoint, limbs[order], evidence[order])
