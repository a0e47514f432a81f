"""The device form of the decoder's first half, compared with the host form that ``decode`` uses."""

import numpy as np
import pytest
import torch

from posenet.benchmark.degraded_maps import degraded_maps
from posenet.data.targets import TargetRenderer
from posenet.errors import ConfigError
from posenet.inference.decoder.candidates import MAX_LIMBS, MAX_PEAKS
from posenet.inference.decoder.decode import decode
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.decoder.host_candidates import find_keypoints, find_limbs
from posenet.inference.decoder.people import decode_candidates
from posenet.settings import TargetsConfig
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import maps_with_cells, render_people, standing_person

CROWD = [
    standing_person(130, 150, 0.7),
    standing_person(190, 165, 0.8, 15),
    standing_person(250, 150, 0.9),
    standing_person(330, 190),
    standing_person(415, 190, 0.6, -20),
]


def select(maps, size=None, **settings):
    """The arrays that ``CandidateSelector`` returns for the maps of one image, ``size`` of whose cells show it."""
    sizes = torch.tensor([size or maps.shape[1:]])
    return [array[0].numpy() for array in CandidateSelector(**settings)(torch.from_numpy(maps)[None], sizes)]


def assert_same(people, others):
    assert len(people) == len(others)
    for one, other in zip(people, others):
        np.testing.assert_allclose(one.keypoints, other.keypoints, atol=0.02)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_both_forms_find_the_same_people_in_rendered_maps():
    maps = render_people(*CROWD)
    people = decode_candidates(*select(maps))
    assert len(people) == len(CROWD)
    assert_same(people, decode(maps))


@pytest.mark.parametrize("seed", range(4))
def test_both_forms_find_the_same_people_in_degraded_maps(seed):
    """The maps are clipped at 1; the added slope prevents plateaus, which the two forms treat differently."""
    maps = degraded_maps(np.stack(CROWD), (96, 128), TargetRenderer(TargetsConfig(), COCO), np.random.default_rng(seed))
    maps -= 1e-5 * np.add(*np.mgrid[:96, 0:192:1.5])
    people = decode(maps)
    assert len(people) > 3
    assert_same(decode_candidates(*select(maps)), people)


def test_thresholds_mean_the_same_in_both_forms():
    maps = render_people(*CROWD)
    assert_same(
        decode_candidates(*select(maps, keypoint_threshold=0.9, part_threshold=0.3)),
        decode(maps, keypoint_threshold=0.9, part_threshold=0.3),
    )
    assert_same(decode_candidates(*select(maps, max_peaks=2)), decode(maps, max_peaks=2))


def test_both_forms_score_the_same_limbs_where_there_are_too_many():
    """In noise every keypoint has more candidates than are kept, so rows of candidates are the same in both forms."""
    maps = np.random.default_rng(0).random((50, 96, 96)).astype(np.float32)
    candidates = find_keypoints(maps[COCO.keypoint_channels], 0.1, MAX_PEAKS)
    limbs = find_limbs(maps[COCO.part_channels], candidates, 0.1, COCO)
    peaks, pairs, limb_scores = select(maps)
    np.testing.assert_allclose(peaks.reshape(-1, 3)[:, :2], candidates.xy, atol=1e-5)
    score_of = {(part, *ends): score for part, ends, score in zip(limbs.part, limbs.ends.tolist(), limbs.score)}
    assert len(score_of) == MAX_LIMBS
    assert {tuple(pair) for pair in pairs.tolist()} == score_of.keys()
    expected = [max(score_of[tuple(pair)], 0) for pair in pairs.tolist()]
    np.testing.assert_allclose(limb_scores, expected, atol=1e-5)


def test_pairs_that_fail_the_prefilter_are_no_limbs():
    """The map of the limb is 0 in the three cells that the prefilter samples, and 1 elsewhere."""
    maps = maps_with_cells(("neck", 16, 0, 1.0), ("nose", 16, 40, 1.0), size=(32, 41))
    maps[COCO.part_channels, :, [10, 20, 30]] = 0
    assert [person.found.sum() for person in decode_candidates(*select(maps))] == [1, 1]
    assert [person.found.sum() for person in decode(maps)] == [1, 1]
    maps[COCO.part_channels, :, 20] = 1
    assert [person.found.sum() for person in decode(maps)] == [2]


def test_limits_are_the_sizes_of_the_arrays():
    peaks, pairs, limb_scores = select(render_people(*CROWD), max_peaks=8, max_limbs=50)
    assert peaks.shape == (18, 8, 3)
    assert pairs.shape == (50, 3)
    assert limb_scores.shape == (50,)
    assert select(render_people(), max_peaks=2)[1].shape == (30 * 2 * 2, 3), "all pairs, if there are fewer"


@pytest.mark.parametrize("max_peaks", [0, 257])
def test_max_peaks_out_of_range_is_refused(max_peaks):
    with pytest.raises(ConfigError, match="1 to 256"):
        CandidateSelector(max_peaks=max_peaks)


def test_padding_is_not_searched():
    maps = render_people(*CROWD)
    inside = np.ascontiguousarray(maps[:, :90, :70])
    assert_same(decode_candidates(*select(maps, (90, 70))), decode(inside))


def test_images_of_a_batch_are_independent():
    batch = np.stack([render_people(*CROWD), render_people(), render_people(CROWD[0])])
    sizes = torch.tensor([batch.shape[2:]] * 3)
    arrays = [array.numpy() for array in CandidateSelector()(torch.from_numpy(batch), sizes)]
    for maps, *arrays_of_image in zip(batch, *arrays):
        assert_same(decode_candidates(*arrays_of_image), decode(maps))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 0.0, 1.0])
def test_unusual_values_yield_finite_people(value):
    people = decode_candidates(*select(np.full((50, 32, 32), value, np.float32)))
    assert all(np.isfinite(person.keypoints).all() and np.isfinite(person.score) for person in people)
    maps = render_people(CROWD[0])
    maps[:, :20, 90:] = value if not value > 0.1 else np.nan
    assert_same(decode_candidates(*select(maps)), decode(maps))


def test_two_equal_cells_are_one_candidate_between_them():
    maps = maps_with_cells(("nose", 10, 20, 0.8), ("nose", 10, 21, 0.8), ("nose", 10, 19, 0.4), ("nose", 10, 22, 0.4))
    [person] = decode_candidates(*select(maps))
    np.testing.assert_allclose(person.keypoints[COCO.index("nose")], (20.5 * 4 + 1.5, 10 * 4 + 1.5, 0.8), atol=1e-4)


def test_the_first_cell_of_a_plateau_is_the_candidate():
    maps = maps_with_cells(*[("nose", row, column, 0.8) for row in (10, 11, 12) for column in (20, 21, 22)])
    peaks, _, _ = select(maps)
    found = peaks[COCO.index("nose")]
    np.testing.assert_allclose(found[found[:, 2] > 0], [(20, 10, 0.8)])


def test_sizes_beyond_the_map_are_those_of_the_map():
    maps = np.zeros((COCO.num_channels, 16, 24), np.float32)
    maps[COCO.keypoint_channels][0][5, 22:] = (0.6, 0.8)  # a peak in the last column
    maps[COCO.keypoint_channels][0][6, 0] = 0.3  # the next value in memory
    for selected, expected in zip(select(maps, size=(99, 99)), select(maps)):
        np.testing.assert_array_equal(selected, expected)
