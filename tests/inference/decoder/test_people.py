"""The second half of the decoder: from candidates to people."""

import dataclasses

import numpy as np
import pytest

from posenet.inference.decoder.decode import (
    KeypointCandidates,
    Limbs,
    assemble_people,
    assign_fragments,
    drop_weak_limbs,
    group_candidates,
)
from posenet.inference.decoder.pose_model import pose_model_of
from posenet.skeleton import COCO
from tests.helpers.poses import ALL, FOREARM, MODEL, upright
from tests.helpers.poses import groups as group_arrays
from tests.helpers.rendered_maps import standing_person

WITHOUT_LAYOUT = dataclasses.replace(COCO, layout={})
"""The same skeleton without a pose model."""


def assemble(candidates, limbs=(), skeleton=COCO):
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
        stride=1,
        max_people=100,
        pose_model=pose_model_of(skeleton) if skeleton.layout else None,
        skeleton=skeleton,
    )


def groups(keypoint, ends, score):
    """The members of every group."""
    label = group_candidates(np.array(keypoint), np.array(ends).reshape(-1, 2), np.array(score, float))
    return sorted(np.flatnonzero(label == one).tolist() for one in np.unique(label))


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
    assert groups(keypoint, [], []) == [[row] for row in range(18)]


def test_limbs_need_a_thousandth_and_35_percent_of_the_best_one_of_their_part_at_either_end():
    part = np.array([0, 0, 0, 0, 0, 1, 2])
    ends = np.array([(0, 5), (0, 6), (0, 7), (1, 5), (2, 5), (0, 5), (3, 8)])
    score = np.array([1.0, 0.36, 0.34, 0.36, 0.34, 0.002, 0.0009], np.float32)
    kept = drop_weak_limbs(Limbs(part, ends, score), 9, COCO)
    assert kept.part.tolist() == [0, 0, 0, 1]
    assert kept.ends.tolist() == [[0, 5], [0, 6], [1, 5], [0, 5]]
    np.testing.assert_array_equal(kept.score, score[[0, 1, 3, 5]])


def test_fragments_are_assigned_to_the_people_whose_pose_they_fit_if_other_limbs_are_missing_too():
    """Two people stand side by side and two one above the other; no limb connects their forearms."""
    forearm = {COCO.index("left_elbow"), COCO.index("left_wrist")}
    joints = np.stack([standing_person(x, y, 0.2) for x, y in ((40, 40), (80, 40), (40, 130), (80, 130))])
    candidates = [(name, *own[row, :2], 1.0) for own in joints for row, name in enumerate(COCO.keypoints)]
    ends = [(a, b) for a, b in COCO.part_ends.tolist() if (a in forearm) == (b in forearm)]
    limbs = [(18 * person + a, 18 * person + b, 0.5) for person in range(4) for a, b in ends]
    ear_and_shoulder = {COCO.index("right_ear"), COCO.index("right_shoulder")}
    fewer = [limb for limb in limbs if {limb[0] % 18, limb[1] % 18} != ear_and_shoulder]
    found = sorted(person.keypoints[:, :2].tolist() for person in assemble(candidates, fewer))
    assert found == sorted(own[:, :2].tolist() for own in joints)
    for other_limbs, skeleton in ((limbs, COCO), (fewer, WITHOUT_LAYOUT)):
        people = assemble(candidates, other_limbs, skeleton)
        assert sorted(person.found.sum() for person in people) == [2] * 4 + [16] * 4


def people_with_one_left_hip(shift, limb_score):
    """Two people who stand close together. They have one candidate for the left hip, ``shift`` cells beside the middle.

    Limbs of ``limb_score`` lead to it from the second person.
    """
    hip = COCO.index("left_hip")
    joints = np.stack([standing_person(60, 60, 0.4), standing_person(67, 64, 0.4)])
    candidates = [(name, *own[row, :2], 1.0) for own in joints for row, name in enumerate(COCO.keypoints)]
    candidates[hip] = ("left_hip", *(joints[:, hip, :2].mean(axis=0) + (shift, 0)), 1.0)
    del candidates[18 + hip]
    rows_of_second = [18 + k - (k > hip) for k in range(18)]
    rows_of_second[hip] = hip
    limbs = [(a, b, 0.5) for a, b in COCO.part_ends.tolist()]
    for a, b in COCO.part_ends.tolist():
        limbs.append((rows_of_second[a], rows_of_second[b], limb_score if hip in (a, b) else 0.5))
    return assemble(candidates, [limb for limb in limbs if limb[2] is not None]), candidates[hip]


@pytest.mark.parametrize("limb_score", [0.5, 0.01, -0.01])
def test_people_share_the_candidate_of_coinciding_hips_if_limbs_lead_to_it_however_weak(limb_score):
    people, (_, x, y, _) = people_with_one_left_hip(0, limb_score)
    assert [person.found.sum() for person in people] == [18, 18]
    for person in people:
        np.testing.assert_allclose(person.keypoints[COCO.index("left_hip")], (x, y, 1), rtol=1e-5)
        assert not person.estimates.any()
    assert people[1].score <= (17 / 18) ** 0.5 + 1e-6, "the shared keypoint does not count"


@pytest.mark.parametrize("shift, limb_score", [(0, None), (60, 0.01)])
def test_people_share_no_candidate_without_a_limb_or_far_from_where_their_pose_expects_it(shift, limb_score):
    people, (_, x, y, _) = people_with_one_left_hip(shift, limb_score)
    hip = COCO.index("left_hip")
    assert [person.found.sum() for person in people] == [18, 17]
    assert not people[1].keypoints[hip].any() and not people[1].estimates[people[1].found].any()
    assert np.abs(people[1].estimates[hip] - (x, y)).max() > 0.1, "the maps show all limbs, but none leads there"


def test_a_candidate_without_a_limb_is_the_estimate_only_near_the_expected_position(monkeypatch):
    """No limb connects the wrist, and its score is too low for an assignment. The maps show no limbs of the legs."""
    joints = standing_person(60, 60, 0.4)
    wrist = COCO.index("left_wrist")
    limbs = [(a, b, 0.5) for a, b in COCO.part_ends.tolist() if wrist not in (a, b)]
    estimates = []
    for shift in (0, 60):
        monkeypatch.setattr("posenet.inference.decoder.decode.DISTANCES_PER_STEP", shift + 1)
        candidates = [(name, *joints[row, :2], 1.0) for row, name in enumerate(COCO.keypoints)]
        candidates[wrist] = ("left_wrist", joints[wrist, 0] + shift, joints[wrist, 1], 0.2)
        missing = [limb for limb in limbs if COCO.index("left_knee") not in limb]
        [person, *_] = assemble(candidates, missing)
        assert person.found.sum() == 17 and not person.found[wrist]
        estimates.append(person.estimates[wrist])
    np.testing.assert_allclose(estimates[0], joints[wrist, :2], atol=1e-4)
    assert np.linalg.norm(estimates[1] - (joints[wrist, :2] + (60, 0))) > 20
    assert np.linalg.norm(estimates[1] - joints[wrist, :2]) < 20


@pytest.mark.parametrize("offsets", [(1, 4), (4, 1)])
def test_of_several_candidates_without_a_limb_the_nearest_to_the_expected_position_is_the_estimate(offsets):
    wrist = COCO.index("left_wrist")
    joints = standing_person(60, 60, 0.4)
    candidates = [(name, *joints[row, :2], 1.0) for row, name in enumerate(COCO.keypoints) if row != wrist]
    rows = {name: row for row, (name, *_) in enumerate(candidates)}
    limbs = [(rows[a], rows[b], 0.5) for a, b in COCO.parts if not {a, b} & {"left_wrist", "left_knee"}]
    expected = assemble(candidates, limbs)[0].estimates[wrist]
    candidates += [("left_wrist", expected[0] + offset, expected[1], 0.2) for offset in offsets]
    [person, *_] = assemble(candidates, limbs)
    np.testing.assert_allclose(person.estimates[wrist], expected + (1, 0), atol=1e-4)


def test_missing_keypoints_are_at_the_mean_of_two_keypoints_or_without_a_layout():
    pair = [("neck", 5, 9, 0.5), ("nose", 5, 5, 0.9)]
    [person] = assemble(pair, [(0, 1, 0.6)])
    np.testing.assert_array_equal(person.estimates[~person.found], [(5, 7)] * 16)
    three = [*pair, ("right_eye", 8, 4, 0.9)]
    [person] = assemble(three, [(0, 1, 0.6), (1, 2, 0.6)], WITHOUT_LAYOUT)
    np.testing.assert_allclose(person.estimates[~person.found], [(6, 6)] * 15)


def test_limbs_to_other_people_lower_the_score():
    pairs = [("neck", 5, 9, 0.5), ("nose", 5, 5, 0.5), ("neck", 25, 9, 0.5), ("nose", 25, 5, 0.5)]
    limbs = [(0, 1, 0.45), (2, 3, 0.45)]
    apart = assemble(pairs, limbs)
    [certain, _] = assemble([*pairs, ("right_eye", 45, 9, 0.5)], limbs)[:2]
    assert apart[0].score == certain.score == pytest.approx(0.5 * (2 / 18) ** 0.5)
    near = assemble(pairs, [*limbs, (0, 3, 0.25)])
    assert [person.score for person in near] == pytest.approx([apart[0].score * 0.5 / 0.75] * 2)


def test_a_limb_that_is_too_long_for_its_person_loses_against_a_shorter_one():
    """The wrist candidates lie beside the elbow: one at the length of a forearm, and one ten times as far away."""
    elbow, wrist = COCO.index("left_elbow"), COCO.index("left_wrist")
    joints = standing_person(60, 60, 0.4)
    candidates = [(name, *joints[row, :2], 1.0) for row, name in enumerate(COCO.keypoints) if row != wrist]
    names = [name for name, *_ in candidates]
    x, y = joints[elbow, :2]
    candidates += [("left_wrist", x + 15, y, 1.0), ("left_wrist", x + 150, y, 1.0)]
    limbs = [(names.index(a), names.index(b), 0.5) for a, b in COCO.parts if "left_wrist" not in (a, b)]
    limbs += [(names.index("left_elbow"), 17, 0.5), (names.index("left_elbow"), 18, 0.7)]
    assert assemble(candidates, limbs)[0].keypoints[wrist, 0] == pytest.approx(x + 15)
    assert assemble(candidates, limbs, WITHOUT_LAYOUT)[0].keypoints[wrist, 0] == pytest.approx(x + 150)


def assign(position, keypoint, score, label, limbs_are_complete=False):
    """The group that each keypoint belongs to after the assignment; groups need not be consecutive."""
    names, label = np.unique(label, return_inverse=True)
    z, scores = group_arrays(position, keypoint, label, score)
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


@pytest.mark.parametrize("shift, score, elbow", [(80, 1, "left"), (0, 0.2, "left"), (0, 1, "right")])
def test_fragments_that_are_far_away_or_weak_or_have_a_keypoint_of_the_person_are_not_assigned(shift, score, elbow):
    label = np.zeros(18, int)
    label[FOREARM] = 1
    position, scores, keypoint = upright(30, 60, 10), np.ones(18), ALL.copy()
    position[FOREARM] += shift
    scores[FOREARM] = score
    keypoint[FOREARM[0]] = COCO.index(f"{elbow}_elbow")
    np.testing.assert_array_equal(assign(position, keypoint, scores, label), label)
