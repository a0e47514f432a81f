import numpy as np
import pytest

from posenet.inference.decoder.decode import group_candidates


def groups(keypoint, ends, score):
    """The members of every group."""
    label = group_candidates(np.array(keypoint), np.array(ends).reshape(-1, 2), np.array(score, float))
    return sorted(np.flatnonzero(label == one).tolist() for one in np.unique(label))


def test_limbs_connect_candidates_into_one_group():
    assert groups([0, 1, 2, 3], [(0, 1), (1, 2)], [0.5, 0.4]) == [[0, 1, 2], [3]]


def test_no_group_has_a_keypoint_twice():
    assert groups([0, 1, 1], [(0, 1), (0, 2)], [0.5, 0.6]) == [[0, 2], [1]]
    assert groups([0, 1, 2, 0], [(0, 1), (1, 2), (2, 3)], [0.9, 0.5, 0.8]) == [[0, 1], [2, 3]]


def test_two_limbs_together_outvote_a_better_one():
    """Row 4 has the best single limb, to row 0. Row 3, the same keypoint, has two limbs to the same group."""
    keypoint = [0, 1, 2, 3, 3]
    ends = [(0, 1), (0, 2), (1, 2), (0, 4), (1, 3), (2, 3)]
    score = [0.9, 0.9, 0.9, 0.6, 0.4, 0.4]
    assert groups(keypoint, ends, score) == [[0, 1, 2, 3], [4]]


def test_without_limbs_every_candidate_is_a_group():
    assert groups([], [], []) == []
    assert groups([0, 0, 1], [], []) == [[0], [1], [2]]


def test_the_order_of_the_limbs_does_not_matter():
    rng = np.random.default_rng(0)
    keypoint = np.sort(rng.integers(0, 6, 30))
    ends = np.array([(a, b) for a in range(30) for b in range(a) if keypoint[a] != keypoint[b]])
    score = rng.random(len(ends))
    order = rng.permutation(len(ends))
    assert groups(keypoint, ends, score) == groups(keypoint, ends[order], score[order])


def merge_one_by_one(keypoint, ends, score):
    """The groups by definition: compute all links, merge the two groups with the strongest one, and repeat."""
    members = [{row} for row in range(len(keypoint))]
    while True:
        best_link, best_pair = 0.0, None
        for a in members:
            for b in members:
                if a is b or {keypoint[row] for row in a} & {keypoint[row] for row in b}:
                    continue
                link = sum(s for (i, j), s in zip(ends, score) if (i in a and j in b) or (i in b and j in a))
                if link > best_link:
                    best_link, best_pair = link, (a, b)
        if best_pair is None:
            return sorted(sorted(group) for group in members)
        first, second = best_pair
        first |= second
        members.remove(second)


@pytest.mark.parametrize("seed", range(6))
def test_groups_equal_those_merged_one_by_one(seed):
    rng = np.random.default_rng(seed)
    keypoint = np.sort(rng.integers(0, 7, 18)).tolist()
    pairs = [(a, b) for a in range(18) for b in range(a) if keypoint[a] != keypoint[b]]
    ends = [pairs[row] for row in rng.permutation(len(pairs))[:45]]
    score = rng.random(45).tolist()
    assert groups(keypoint, ends, score) == merge_one_by_one(keypoint, ends, score)
