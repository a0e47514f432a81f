"""Keypoint candidates and limbs with NumPy and OpenCV, compared with the rules that ``candidates`` states."""

import numpy as np
import pytest

from posenet.inference.decoder.decode import (
    KeypointCandidates,
    Limbs,
    best_limbs,
    find_keypoints,
    find_limbs,
    limit_candidates,
)
from posenet.skeleton import COCO


def test_plateaus_and_the_threshold():
    """A plateau is one candidate at its centre, but for a ring; a peak on a plateau is another one."""
    maps = np.zeros((5, 21, 21), np.float32)
    maps[0, 4:6, 10:13] = 0.8
    maps[1, 0, 0] = maps[1, 20, 20] = 0.5
    maps[2] = 0.3
    maps[2, 6, 4] = 1
    maps[3, 3:8, 3:8] = 0.8
    maps[3, 4:7, 4:7] = 0
    maps[4, 2, 2] = 0.25
    maps[4, 6, 6] = 0.2499
    candidates = find_keypoints(maps, 0.25)
    assert candidates.keypoint.tolist() == [0, 1, 1, 2, 2, 4]
    np.testing.assert_allclose(candidates.xy, [(11, 4.5), (0, 0), (20, 20), (4, 6), (10, 10), (2, 2)])


@pytest.mark.parametrize("columns", [[8, 9], [9, 8]])
def test_two_equal_cells_that_meet_at_a_corner_are_one_candidate_between_them(columns):
    maps = np.zeros((1, 20, 20), np.float32)
    maps[0, 5:7, 8:10] = 0.3
    maps[0, [5, 6], columns] = 0.8
    for threshold in (0.1, 0.5):
        candidates = find_keypoints(maps, threshold)
        assert candidates.xy.tolist() == [[8.5, 5.5]] and candidates.score.tolist() == [np.float32(0.8)]


def test_a_plateau_is_refined_only_along_the_axis_on_which_it_is_one_cell_wide():
    maps = np.zeros((1, 20, 20), np.float32)
    maps[0, 5, 8:10] = 0.8
    maps[0, 4, 8:10] = 0.2
    maps[0, 6, 8:10] = 0.4
    maps[0, 5, 7] = 0.7
    maps[0, 5, 10] = 0.1
    [(x, y)] = find_keypoints(maps, 0.1).xy
    assert x == 8.5 and 5.1 < y < 5.5


def clip_value(value):
    """A map value as the rules read it: clipped to the range from 0 to 2."""
    return min(max(float(value), 0.0), 2.0)


def interpolate(part_map, x, y):
    """The value of a map at a point between its cells."""
    height, width = part_map.shape
    column, row = int(x), int(y)
    value = 0.0
    for cell_y, weight_y in ((row, 1 - (y - row)), (row + 1, y - row)):
        for cell_x, weight_x in ((column, 1 - (x - column)), (column + 1, x - column)):
            cell = part_map[min(cell_y, height - 1), min(cell_x, width - 1)]
            value += weight_y * weight_x * clip_value(cell)
    return value


def expected_limbs(maps, candidates, threshold):
    """The limb score of every pair that passes the prefilter, computed pair by pair."""
    scores = {}
    for part, (first_keypoint, second_keypoint) in enumerate(COCO.part_ends):
        for a in np.flatnonzero(candidates.keypoint == first_keypoint):
            for b in np.flatnonzero(candidates.keypoint == second_keypoint):
                start, end = candidates.xy[a].astype(float), candidates.xy[b].astype(float)
                nearest = [np.rint(start + (end - start) * position).astype(int) for position in (0.25, 0.5, 0.75)]
                if np.mean([clip_value(maps[part, y, x]) for x, y in nearest]) <= threshold:
                    continue
                points = [start + (end - start) * number / 9 for number in range(10)]
                samples = sorted(interpolate(maps[part], x, y) for x, y in points)
                support = (np.mean(samples) + samples[1]) / 2
                confidence = (float(candidates.score[a]) * float(candidates.score[b])) ** 1.5
                scores[part, a, b] = (support - threshold) * confidence
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_limb_scores_equal_those_computed_pair_by_pair(seed):
    rng = np.random.default_rng(seed)
    height, width = 14, 19
    maps = rng.uniform(-0.5, 2.5, (COCO.num_parts, height, width)).astype(np.float32)
    keypoint = np.sort(rng.integers(0, COCO.num_keypoints, 45))
    xy = rng.uniform(0, (width - 1, height - 1), (45, 2)).astype(np.float32)
    xy[:3] = (0, 0), (width - 1, height - 1), (width - 1, 0)
    candidates = KeypointCandidates(keypoint, xy, rng.uniform(0.1, 1, 45).astype(np.float32))
    limbs = find_limbs(maps, candidates, 0.7, COCO)
    expected = expected_limbs(maps, candidates, 0.7)
    found = {(part, *ends): score for part, ends, score in zip(limbs.part, limbs.ends.tolist(), limbs.score)}
    assert len(found) == len(limbs.part)
    assert 50 < len(expected) < 0.9 * len(expected_limbs(maps, candidates, -1.0))
    assert found.keys() == expected.keys()
    for pair, score in expected.items():
        assert found[pair] == pytest.approx(score, abs=1e-4)


def peak_offset(before, peak, after):
    """Offset of the top of the parabola through three logarithms, by NumPy's own fit."""
    before, peak, after = (clip_value(value) for value in (before, peak, after))
    if before == 0 or after == 0 or before == peak == after:
        return 0.0
    square, slope, _ = np.polyfit([-1, 0, 1], np.log([before, peak, after]), 2)
    return -slope / (2 * square)


@pytest.mark.parametrize("seed", range(3))
def test_peaks_equal_those_found_cell_by_cell(seed):
    rng = np.random.default_rng(seed)
    maps = rng.uniform(-0.3, 1.9, (3, 15, 11))
    maps[rng.random(maps.shape) < 0.1] = -1e30
    maps[1, 7, 5] = 2.6
    maps = maps.astype(np.float32)
    threshold = 0.9
    expected = []
    for keypoint, keypoint_map in enumerate(maps):
        surrounded = np.pad(keypoint_map.clip(min=0), 1)
        peaks = []
        for y in range(1, 16):
            for x in range(1, 12):
                value = surrounded[y, x]
                if value >= threshold and value == surrounded[y - 1 : y + 2, x - 1 : x + 2].max():
                    dx = peak_offset(surrounded[y, x - 1], value, surrounded[y, x + 1])
                    dy = peak_offset(surrounded[y - 1, x], value, surrounded[y + 1, x])
                    peaks.append((keypoint, x - 1 + dx, y - 1 + dy, clip_value(value)))
        expected += sorted(peaks, key=lambda peak: -peak[3])
    candidates = find_keypoints(maps, threshold)
    assert len(expected) > 20
    assert candidates.keypoint.tolist() == [peak[0] for peak in expected]
    np.testing.assert_allclose(candidates.xy, [peak[1:3] for peak in expected], atol=1e-3)
    np.testing.assert_allclose(candidates.score, [peak[3] for peak in expected])


def test_a_limit_in_proportion_to_the_size_of_the_maps_keeps_the_strongest_candidates():
    """Every second cell of two keypoints that a body part connects is a peak; the others have none."""
    peaks = np.zeros((COCO.num_keypoints, 40, 40), np.float32)
    peaks[COCO.index("neck"), ::2, ::2] = np.linspace(0.5, 1, 400).reshape(20, 20)
    peaks[COCO.index("nose"), ::2, ::2] = np.linspace(1, 0.5, 400).reshape(20, 20)
    candidates = find_keypoints(peaks, 0.1)
    assert len(limit_candidates(candidates, 3000, COCO).score) == len(candidates.score) == 800
    kept = limit_candidates(candidates, 1500, COCO)
    assert len(kept.score) == 2 * 300  # 300 * 300 pairs are 60 for each of 1500 cells
    assert kept.score.min() == np.sort(candidates.score)[200]


def many_noses_and_necks(number):
    """Candidates at random places, and maps that support every pair of them."""
    rng = np.random.default_rng(0)
    keypoint = np.repeat([COCO.index("nose"), COCO.index("neck")], number)
    xy = rng.uniform(0, 39, (2 * number, 2)).astype(np.float32)
    candidates = KeypointCandidates(np.sort(keypoint), xy, rng.uniform(0.5, 1, 2 * number).astype(np.float32))
    return candidates, rng.uniform(0.9, 1, (COCO.num_parts, 40, 40)).astype(np.float32)


def test_of_many_pairs_the_ten_shortest_at_each_end_become_limbs():
    """Few pairs all become limbs."""
    candidates, maps = many_noses_and_necks(150)
    limbs = find_limbs(maps, candidates, 0.1, COCO)
    first, second = COCO.part_ends[COCO.parts.index(("neck", "nose"))]
    noses, necks = (np.flatnonzero(candidates.keypoint == end) for end in (first, second))
    length = np.hypot(*(candidates.xy[noses, None] - candidates.xy[necks]).T).T
    is_short = length.argsort(1).argsort(1) < 10
    is_short &= np.where(is_short, length, np.inf).argsort(0).argsort(0) < 10
    expected = np.stack(np.nonzero(is_short), axis=1) + (noses[0], necks[0])
    assert limbs.ends.tolist() == expected.tolist()
    few, maps = many_noses_and_necks(64)
    assert len(find_limbs(maps, few, 0.1, COCO).score) == 64 * 64


def test_of_many_limbs_the_two_best_of_a_part_at_both_ends_can_join_people(monkeypatch):
    score = np.array([5, 4, 3, 2, 1], np.float32)
    ends = np.array([(0, 9), (0, 8), (0, 7), (1, 9), (2, 9)])
    assert len(best_limbs(Limbs(np.zeros(5, int), ends, score), 10).score) == 5
    monkeypatch.setattr("posenet.inference.decoder.decode.MANY_LIMBS", 4)
    kept = best_limbs(Limbs(np.zeros(5, int), ends, score), 10)
    assert kept.ends.tolist() == [[0, 9], [0, 8], [1, 9]]
    other_part = np.array([0, 0, 1, 0, 1])
    assert best_limbs(Limbs(other_part, ends, score), 10).score.tolist() == [5, 4, 3, 2, 1]
