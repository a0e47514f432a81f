import numpy as np

from posenet.inference.decoder.candidates import MAX_LIMBS
from posenet.inference.decoder.host_candidates import find_keypoints, find_limbs
from posenet.skeleton import COCO


def test_a_plateau_is_one_candidate_at_its_centre():
    maps = np.zeros((2, 20, 20), np.float32)
    maps[0, 4:6, 10:13] = 0.8
    maps[1, 0, 0] = maps[1, 19, 19] = 0.5
    candidates = find_keypoints(maps, 0.1, 10)
    assert candidates.keypoint.tolist() == [0, 1, 1]
    np.testing.assert_allclose(candidates.xy, [(11, 4.5), (0, 0), (19, 19)])


def test_a_plateau_is_refined_only_along_the_axis_on_which_it_is_one_cell_wide():
    maps = np.zeros((1, 20, 20), np.float32)
    maps[0, 5, 8:10] = 0.8
    maps[0, 4, 8:10] = 0.2
    maps[0, 6, 8:10] = 0.4
    maps[0, 5, 7] = 0.7
    maps[0, 5, 10] = 0.1
    [(x, y)] = find_keypoints(maps, 0.1, 10).xy
    assert x == 8.5 and 5.1 < y < 5.5


def test_a_peak_inside_a_plateau_is_found_once():
    maps = np.full((1, 21, 21), 0.3, np.float32)
    maps[0, 6, 4] = 1
    candidates = find_keypoints(maps, 0.1, 10)
    np.testing.assert_allclose(candidates.xy, [(4, 6), (10, 10)])


def test_a_ring_with_a_low_centre_has_no_candidate():
    maps = np.zeros((1, 11, 11), np.float32)
    maps[0, 3:8, 3:8] = 0.8
    maps[0, 4:7, 4:7] = 0
    assert len(find_keypoints(maps, 0.1, 10).score) == 0


def test_only_the_strongest_peaks_are_kept():
    maps = np.zeros((1, 40, 40), np.float32)
    maps[0, ::4, ::4] = np.linspace(0.2, 1, 100).reshape(10, 10)
    candidates = find_keypoints(maps, 0.1, 7)
    np.testing.assert_allclose(candidates.score, np.sort(maps.ravel())[::-1][:7])


def test_noise_yields_a_bounded_number_of_limbs():
    noise = np.random.default_rng(0).random((50, 96, 96)).astype(np.float32)
    candidates = find_keypoints(noise[COCO.keypoint_channels], 0.1, 20)
    assert np.bincount(candidates.keypoint).max() <= 20
    limbs = find_limbs(noise[COCO.part_channels], candidates, 0.1, COCO)
    assert len(limbs.part) == MAX_LIMBS
