"""The second half of the decoder: from candidates to people."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from posenet.inference.decoder.device_candidates import CandidateSelector

from posenet.inference.decoder.candidates import KeypointCandidates, Limbs
from posenet.inference.decoder.people import assemble_people, decode_candidates, drop_weak_limbs
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import render_people, standing_person

WITHOUT_LAYOUT = dataclasses.replace(COCO, layout={})
"""The same skeleton without a pose model."""


@pytest.fixture(scope="module")
def arrays():
    """Peaks, pairs and limb scores of two people."""
    maps = torch.from_numpy(render_people(standing_person(130, 150, 0.7), standing_person(330, 190)))[None]
    return [array[0].numpy() for array in CandidateSelector()(maps, torch.tensor([maps.shape[2:]]))]


def test_thresholds_drop_people(arrays):
    assert len(decode_candidates(*arrays)) == 2
    assert decode_candidates(*arrays, min_score=1.1) == []
    assert decode_candidates(*arrays, min_keypoints=19) == []


def test_the_stride_scales_the_positions(arrays):
    for one, other in zip(decode_candidates(*arrays, stride=4), decode_candidates(*arrays, stride=8)):
        np.testing.assert_allclose((other.keypoints[:, :2] + 0.5) / 2, one.keypoints[:, :2] + 0.5, rtol=1e-5)


def test_pairs_without_a_score_are_no_limbs(arrays):
    peaks, pairs, limb_scores = arrays
    people = decode_candidates(peaks, pairs, np.zeros_like(limb_scores))
    assert [person.found.sum() for person in people] == [1] * 36


def test_no_candidates_are_no_people(arrays):
    peaks, pairs, limb_scores = arrays
    assert decode_candidates(np.zeros_like(peaks), pairs, np.zeros_like(limb_scores)) == []
    assert decode_candidates(peaks[:, :0], pairs[:0], limb_scores[:0]) == []


def test_arrays_of_wrong_shapes_are_refused(arrays):
    peaks, pairs, limb_scores = arrays
    with pytest.raises(ValueError, match="peaks must be"):
        decode_candidates(peaks[:5], pairs, limb_scores)
    with pytest.raises(ValueError, match="pairs must be"):
        decode_candidates(peaks, pairs[:, :2], limb_scores)


def test_the_module_needs_numpy_only(arrays, tmp_path):
    np.savez(tmp_path / "arrays.npz", *arrays)
    program = """
import sys
class BlockedImports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cv2", "h5py", "pycocotools", "tqdm", "onnx", "onnxruntime"):
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, BlockedImports())
import numpy as np
from posenet.inference.decoder.people import decode_candidates
people = decode_candidates(*np.load(sys.argv[1]).values())
np.save(sys.argv[2], np.stack([person.keypoints for person in people]))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "arrays.npz", tmp_path / "people.npy"], check=True)
    np.testing.assert_array_equal(
        np.load(tmp_path / "people.npy"), np.stack([person.keypoints for person in decode_candidates(*arrays)])
    )


def assemble(candidates, limbs=(), skeleton=COCO, **settings):
    """The people of candidates (keypoint name, x, y, score) in map cells and limbs (row, row, score)."""
    names, x, y, scores = zip(*candidates)
    keypoint = np.array([skeleton.index(name) for name in names])
    xy = np.stack([x, y], axis=1).astype(np.float32)
    ends = np.array([(a, b) for a, b, _ in limbs], int).reshape(-1, 2)
    parts = skeleton.part_ends.tolist()
    part = np.array([parts.index(pair) for pair in keypoint[ends].tolist()], int)
    return assemble_people(
        KeypointCandidates(keypoint, xy, np.array(scores, np.float32)),
        Limbs(part, ends, np.array([score for *_, score in limbs], np.float32)),
        **dict(stride=1, min_keypoints=1, min_score=0.05, skeleton=skeleton) | settings,
    )


def test_the_score_is_the_mean_times_the_root_of_the_share_of_keypoints_found():
    [pair, single] = assemble([("neck", 5, 9, 0.5), ("nose", 5, 5, 0.9), ("Lank", 90, 90, 0.8)], [(0, 1, 0.6)])
    assert pair.score == pytest.approx(0.7 * (2 / 18) ** 0.5)
    assert single.score == pytest.approx(0.8 * (1 / 18) ** 0.5)


def test_people_at_the_limits_are_kept():
    candidates = [("neck", 5, 9, 0.25), ("nose", 5, 5, 0.25)]
    score = 0.25 * (2 / 18) ** 0.5
    assert len(assemble(candidates, [(0, 1, 0.6)], min_score=score, min_keypoints=2)) == 1
    assert assemble(candidates, [(0, 1, 0.6)], min_score=score + 1e-6) == []
    assert assemble(candidates, [(0, 1, 0.6)], min_keypoints=3) == []


def test_limbs_need_a_thousandth_and_35_percent_of_the_best_one_of_their_part_at_either_end():
    part = np.array([0, 0, 0, 0, 0, 1, 2])
    ends = np.array([(0, 5), (0, 6), (0, 7), (1, 5), (2, 5), (0, 5), (3, 8)])
    score = np.array([1.0, 0.36, 0.34, 0.36, 0.34, 0.002, 0.0009], np.float32)
    kept = drop_weak_limbs(Limbs(part, ends, score), 9, COCO)
    assert kept.part.tolist() == [0, 0, 0, 1]
    assert kept.ends.tolist() == [[0, 5], [0, 6], [1, 5], [0, 5]]
    np.testing.assert_array_equal(kept.score, score[[0, 1, 3, 5]])


def test_candidates_at_the_upper_and_left_border_are_found():
    peaks = np.zeros((18, 1, 3), np.float32)
    peaks[COCO.index("nose"), 0] = (0, 7, 0.9)
    peaks[COCO.index("Lank"), 0] = (30, 0, 0.8)
    no_pairs = np.zeros((0, 3), int), np.zeros(0, np.float32)
    people = decode_candidates(peaks, *no_pairs, stride=1)
    assert [person.keypoints[person.found].tolist()[0][:2] for person in people] == [[0, 7], [30, 0]]


def test_rows_without_a_score_are_no_candidates_even_without_a_lowest_score():
    peaks = np.zeros((18, 3, 3), np.float32)
    peaks[COCO.index("nose"), 1] = (5, 7, 0.9)
    pairs = np.array([(0, 0, 3)])
    [person] = decode_candidates(peaks, pairs, np.zeros(1, np.float32), min_score=0.0, min_keypoints=0)
    assert person.found.sum() == 1


def test_fragments_are_assigned_if_the_skeleton_has_a_layout():
    """A standing person of 18 keypoints, two cells per limb unit; no limb connects the forearm."""
    joints = standing_person(60, 60, 0.4)
    candidates = [(name, *joints[row, :2], 1.0) for row, name in enumerate(COCO.keypoints)]
    forearm = {COCO.index("Lelb"), COCO.index("Lwri")}
    limbs = [(a, b, 0.5) for a, b in COCO.part_ends.tolist() if (a in forearm) == (b in forearm)]
    assert [person.found.sum() for person in assemble(candidates, limbs)] == [18]
    assert [person.found.sum() for person in assemble(candidates, limbs, WITHOUT_LAYOUT)] == [16, 2]


@pytest.mark.parametrize("seed", range(4))
def test_mirrored_candidates_are_assembled_to_the_mirrored_people(seed):
    """Three people stand close together. Two thirds of their limbs are missing, so that there are many fragments."""
    rng = np.random.default_rng(seed)
    joints = np.stack([standing_person(50 + 9 * i, 60 + 7 * rng.random(), 0.4, 30 * rng.random()) for i in range(3)])
    candidates = [
        (name, *joints[person, row, :2], rng.uniform(0.5, 1))
        for person in range(3)
        for row, name in enumerate(COCO.keypoints)
    ]
    flip = COCO.flip_keypoints.tolist()
    parts = COCO.part_ends.tolist()
    symmetric_parts = [(a, b) for a, b in parts if [flip[a], flip[b]] in parts]
    limbs = [
        (18 * person + a, 18 * person + b, rng.uniform(0.2, 1))
        for person in range(3)
        for a, b in symmetric_parts
        if rng.random() < 1 / 3
    ]
    mirrored = [(COCO.keypoints[flip[COCO.index(name)]], 200 - x, y, score) for name, x, y, score in candidates]
    people = assemble(candidates, limbs)
    mirrored_people = assemble(mirrored, limbs)
    assert len(people) == len(mirrored_people) < 3 * 18 - len(limbs)
    for one, other in zip(people, mirrored_people):
        back = other.keypoints[flip]
        back[:, 0] = np.where(other.found[flip], 200 - back[:, 0], 0)
        np.testing.assert_allclose(back, one.keypoints, atol=1e-4)


def four_people_without_limbs_to_their_forearms(missing_parts=()):
    """Two people side by side and two one above the other: their joints, candidates, and limbs (row, row, score)."""
    forearm = {COCO.index("Lelb"), COCO.index("Lwri")}
    joints = np.stack([standing_person(x, y, 0.2) for x, y in ((40, 40), (80, 40), (40, 130), (80, 130))])
    candidates = [(name, *own[row, :2], 1.0) for own in joints for row, name in enumerate(COCO.keypoints)]
    limbs = [
        (18 * person + a, 18 * person + b, 0.5)
        for person in range(4)
        for part, (a, b) in zip(COCO.parts, COCO.part_ends.tolist())
        if (a in forearm) == (b in forearm) and part not in missing_parts
    ]
    return joints, candidates, limbs


def test_every_fragment_is_assigned_to_the_person_whose_pose_it_fits():
    """Other limbs are missing too, so that a missing limb proves nothing."""
    joints, candidates, limbs = four_people_without_limbs_to_their_forearms(missing_parts=[("Rear", "Rsho")])
    found = sorted(person.keypoints[:, :2].tolist() for person in assemble(candidates, limbs))
    assert found == sorted(own[:, :2].tolist() for own in joints)


def test_fragments_stay_alone_if_the_maps_show_all_limbs_but_theirs():
    _, candidates, limbs = four_people_without_limbs_to_their_forearms()
    assert sorted(person.found.sum() for person in assemble(candidates, limbs)) == [2] * 4 + [16] * 4


def two_people_with_one_hip():
    """Candidates and limbs of two people whose left hips coincide, so that there is one candidate for both."""
    hip = COCO.index("Lhip")
    joints = np.stack([standing_person(60, 60, 0.4), standing_person(67, 64, 0.4)])
    candidates = [(name, *own[row, :2], 1.0) for own in joints for row, name in enumerate(COCO.keypoints)]
    candidates[hip] = ("Lhip", *joints[:, hip, :2].mean(axis=0), 1.0)
    del candidates[18 + hip]
    row = [list(range(18)), [18 + k - (k > hip) for k in range(18)]]
    row[1][hip] = hip
    limbs = [(row[person][a], row[person][b], 0.5) for person in range(2) for a, b in COCO.part_ends.tolist()]
    return candidates, limbs


@pytest.mark.parametrize("skeleton", [COCO, WITHOUT_LAYOUT], ids=["layout", "no layout"])
def test_two_people_share_a_hip_if_the_limbs_support_both(skeleton):
    candidates, limbs = two_people_with_one_hip()
    hip = COCO.index("Lhip")
    people = assemble(candidates, limbs, skeleton)
    assert [person.found.sum() for person in people] == [18, 18]
    np.testing.assert_array_equal(people[0].keypoints[hip], people[1].keypoints[hip])
    assert people[0].score > people[1].score  # the second one does not own the hip


def test_a_hip_is_not_shared_with_weak_limbs_or_a_single_one():
    candidates, limbs = two_people_with_one_hip()
    hip = COCO.index("Lhip")
    of_second = [max(a, b) >= 18 and hip in (a, b) for a, b, _ in limbs]
    weak = [(a, b, score / 3 if shared else score) for (a, b, score), shared in zip(limbs, of_second)]
    assert sorted(person.found.sum() for person in assemble(candidates, weak)) == [17, 18]
    first = of_second.index(True)
    single = [limb for index, limb in enumerate(limbs) if index == first or not of_second[index]]
    assert sorted(person.found.sum() for person in assemble(candidates, single)) == [17, 18]


def test_limbs_to_other_people_lower_the_score():
    pairs = [("neck", 5, 9, 0.5), ("nose", 5, 5, 0.5), ("neck", 25, 9, 0.5), ("nose", 25, 5, 0.5)]
    limbs = [(0, 1, 0.45), (2, 3, 0.45)]
    apart = assemble(pairs, limbs)
    [certain, _] = assemble([*pairs, ("Reye", 45, 9, 0.5)], limbs)[:2]
    assert apart[0].score == certain.score == pytest.approx(0.5 * (2 / 18) ** 0.5)
    near = assemble(pairs, [*limbs, (0, 3, 0.25)])
    assert [person.score for person in near] == pytest.approx([apart[0].score * 0.5 / 0.75] * 2)


def test_a_limb_that_is_too_long_for_its_person_loses_against_a_shorter_one():
    """The wrist candidates lie beside the elbow: one at the length of a forearm, and one ten times as far away."""
    elbow, wrist = COCO.index("Lelb"), COCO.index("Lwri")
    joints = standing_person(60, 60, 0.4)
    candidates = [(name, *joints[row, :2], 1.0) for row, name in enumerate(COCO.keypoints) if row != wrist]
    names = [name for name, *_ in candidates]
    x, y = joints[elbow, :2]
    candidates += [("Lwri", x + 15, y, 1.0), ("Lwri", x + 150, y, 1.0)]
    limbs = [(names.index(a), names.index(b), 0.5) for a, b in COCO.parts if "Lwri" not in (a, b)]
    limbs += [(names.index("Lelb"), 17, 0.5), (names.index("Lelb"), 18, 0.7)]
    assert assemble(candidates, limbs)[0].keypoints[wrist, 0] == pytest.approx(x + 15)
    assert assemble(candidates, limbs, WITHOUT_LAYOUT)[0].keypoints[wrist, 0] == pytest.approx(x + 150)
