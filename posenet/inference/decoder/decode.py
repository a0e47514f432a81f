"""``decode``: from the maps of one image to its people. ``candidates`` is the first half, and the rest is here.

Limbs join candidates into groups. Some of these are fragments: groups that no limb connects to the person whom they
belong to, such as an arm without its shoulder. The pose model assigns them. It also completes people with candidates
that other people have too, estimates where their missing keypoints are, and refines uncertain positions.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from posenet.inference.decoder.candidates import (
    KeypointCandidates,
    Limbs,
    best_limbs,
    drop_weak_limbs,
    find_keypoints,
    find_limbs,
    limit_candidates,
)
from posenet.inference.decoder.pose_model import MAX_DEVIATION, MIN_FOR_ESTIMATE, PoseModel, pose_model_of
from posenet.person import Person
from posenet.settings import MAP_STRIDE, InferenceConfig
from posenet.skeleton import COCO, Skeleton

if TYPE_CHECKING:
    from torch import Tensor

MIN_SCORE = 0.05
"""People with a lower score are dropped."""
PART_THRESHOLD = 0.1
"""A limb needs a higher response than this on the map of its body part: ten times ``targets.PART_FLOOR``."""
MAX_MISSING_LIMB_SHARE = 0.01
"""If fewer than this share of the body parts inside people lack a limb, the maps are taken to show all limbs."""
LIMB_SCORE_FLOOR = 0.05
"""Added to sums of limb scores in the score of a person, so that weak limbs hardly matter."""
DISTANCES_PER_STEP = 2**20
"""Distances of candidates from expected positions that are computed together, which bounds the memory."""
MIN_SCORE_RATIO = 0.6
"""A fragment is not assigned if its mean score is below this share of the person's."""
CELLS_PER_PERSON = 40
"""Cells of a map for each person that it has room for: the best ones are kept. Only maps of noise have more."""
MIN_ROOM = 100
"""People for whom small maps have room."""


def decode(
    maps: np.ndarray | Tensor,
    *,
    stride: int = MAP_STRIDE,
    keypoint_threshold: float = InferenceConfig.keypoint_threshold,
    part_threshold: float = PART_THRESHOLD,
    min_score: float = MIN_SCORE,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people in the maps of one image.

    Args:
        maps: (C, h, w) floating-point output of the network. The last two channels, person mask and keypoint
            foreground, are not used and may be missing.
        stride: network-input pixels per cell. Cell i is centred on pixel ``stride * i + (stride - 1) / 2``.
        keypoint_threshold: lowest peak of a keypoint map that becomes a candidate, above 0.
        part_threshold: a limb needs a higher response than this on the map of its body part.
        min_score: people with a lower score are dropped, before limbs to other people lower the score further.
        skeleton: meaning of the channels.

    Returns:
        People, highest score first, with keypoints in pixels of the network input. ``assemble_people`` states their
        score. Two people can have the same keypoint where theirs coincide (``complete_people``). If the skeleton has a
        layout, keypoints with low scores are moved from their peak towards where the rest of their person suggests.

    Raises:
        ValueError: the shape or the type of the maps does not fit, or an argument is out of range.
        DataError: a value that the people depend on is NaN or infinite.
    """
    if not keypoint_threshold > 0 or stride < 1:
        raise ValueError("keypoint_threshold must be above 0, and stride at least 1")
    maps = check_maps(maps, skeleton)
    peaks = find_keypoints(maps[skeleton.keypoint_channels], keypoint_threshold)
    candidates = limit_candidates(peaks, maps[0].size, skeleton)
    is_noise = len(candidates.score) < len(peaks.score)
    limbs = find_limbs(maps[skeleton.part_channels], candidates, part_threshold, skeleton)
    return assemble_people(
        candidates,
        limbs,
        stride=stride,
        min_score=min_score,
        max_people=max(MIN_ROOM, maps[0].size // CELLS_PER_PERSON),
        pose_model=pose_model_of(skeleton) if skeleton.layout and not is_noise else None,
        skeleton=skeleton,
    )


def check_maps(maps: np.ndarray | Tensor, skeleton: Skeleton) -> np.ndarray:
    """The maps of one image as float32; ``ValueError`` if their shape or type does not fit."""
    if hasattr(maps, "detach"):  # a tensor; this module works without PyTorch
        maps = maps.detach().cpu()
        maps = (maps.float() if maps.is_floating_point() else maps).numpy()
    maps = np.asarray(maps)
    num_channels = skeleton.num_channels, skeleton.num_decoded_channels
    if maps.ndim != 3 or len(maps) not in num_channels or not maps.size:
        raise ValueError(f"maps must be ({skeleton.num_channels}, h, w), not {maps.shape}")
    if maps.dtype.kind != "f":
        raise ValueError(f"maps must be floating-point numbers, not {maps.dtype}")
    with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and an error if it is read
        return np.asarray(maps, np.float32)


def assemble_people(
    candidates: KeypointCandidates,
    limbs: Limbs,
    *,
    stride: int,
    min_score: float,
    max_people: int,
    pose_model: PoseModel | None,
    skeleton: Skeleton,
) -> list[Person]:
    """The people that candidates and limbs make; without a ``pose_model``, as for maps of noise, limbs alone.

    A person with n of K keypoints, of scores s_i, without those that ``complete_people`` adds, has the score

        mean(s) sqrt(n / K) (within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR),

    where "within" is the sum of the limb scores inside the person, and "across" that of the limbs to other people.
    ``min_score`` applies to the product without this last factor. Where maps exceed 1, the scores of people and of
    keypoints are 1.
    """
    strong_limbs = drop_weak_limbs(limbs, len(candidates.score), skeleton)
    rivals = best_limbs(strong_limbs, len(candidates.score))
    label, limbs_are_complete = group_into_people(candidates, rivals, max_people, pose_model)
    count = np.bincount(label)
    score = np.bincount(label, candidates.score) / np.sqrt(count * skeleton.num_keypoints)
    is_kept = score >= min_score
    score *= _share_of_limbs_within(strong_limbs, label, len(count))
    kept = np.flatnonzero(is_kept)
    kept = kept[np.argsort(-score[kept], kind="stable")][:max_people]  # labels, highest score first

    row = np.full(len(count), -1)  # label to row of the result, the owner; -1 where the person is dropped
    row[kept] = np.arange(len(kept))
    owner = row[label]
    owned = np.flatnonzero(owner >= 0)
    keypoints = np.zeros((len(kept), skeleton.num_keypoints, 3), np.float32)
    keypoints[owner[owned], candidates.keypoint[owned], :2] = candidates.xy[owned]
    keypoints[owner[owned], candidates.keypoint[owned], 2] = candidates.score[owned]
    # person * N + candidate for the two ends of every limb: the owner of each and the candidate at the other.
    linked = (owner[limbs.ends] * len(owner) + limbs.ends[:, ::-1])[owner[limbs.ends] >= 0]
    keypoints, estimates = complete_people(keypoints, candidates, linked, limbs_are_complete, pose_model)
    if pose_model is not None:
        keypoints = pose_model.refine_keypoints(keypoints)
    found = keypoints[..., 2] > 0
    cell = np.float32(stride)
    centre = np.float32((stride - 1) / 2)
    keypoints[..., :2] = np.where(found[..., None], keypoints[..., :2] * cell + centre, 0)
    keypoints[..., 2] = np.minimum(keypoints[..., 2], 1)
    estimates = np.where(found[..., None], 0, estimates * cell + centre)
    people_of_rows = zip(keypoints, np.minimum(score[kept], 1).tolist(), estimates)
    return [Person(rows, value, skeleton, estimates=estimate) for rows, value, estimate in people_of_rows]


def group_into_people(
    candidates: KeypointCandidates, limbs: Limbs, max_people: int, pose_model: PoseModel | None
) -> tuple[np.ndarray, bool]:
    """The person of every candidate, (N,) from 0, and whether the maps are so clear that they show all limbs.

    The candidates are grouped by their limbs. With a pose model, they are grouped again after the scores of limbs that
    are too long for the size of their person were lowered, and fragments are assigned to people.
    """
    label = _consecutive(group_candidates(candidates.keypoint, limbs.ends, limbs.score))
    if pose_model is None or not len(label):
        return label, False
    position = _complex_positions(candidates)
    z, score = _group_arrays(label, candidates, position, len(pose_model.height))
    end_labels = label[limbs.ends]
    scale = np.abs(pose_model.estimate_poses(z, score > 0)[1])[end_labels, 0].max(axis=1)
    length = np.abs(position[limbs.ends[:, 1]] - position[limbs.ends[:, 0]])
    factor = pose_model.length_factor(length, limbs.part, scale)
    is_within = end_labels[:, 0] == end_labels[:, 1]
    if (factor[is_within] < 1).any():
        label = _consecutive(group_candidates(candidates.keypoint, limbs.ends, limbs.score * factor))
        z, score = _group_arrays(label, candidates, position, len(pose_model.height))
    limbs_are_complete = _missing_limb_share(limbs, label, score > 0, pose_model.is_part) < MAX_MISSING_LIMB_SHARE
    target = assign_fragments(pose_model, z, score, limbs_are_complete, max_people)
    return _consecutive(target[label]), limbs_are_complete


def group_candidates(keypoint: np.ndarray, ends: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Group candidates so that limbs with high scores join members of one group, and no group has a keypoint twice.

    At first, every candidate is a separate group. The link between two groups is the sum of the scores of all limbs
    between them; groups that have a keypoint in common have no link. In each step, the two groups with the strongest
    link are merged.

    Args:
        keypoint: (N,) keypoint of each candidate.
        ends: (M, 2) candidates that each limb connects; no pair twice.
        score: (M,) score of each limb, above 0.

    Returns:
        (N,) label of each candidate's group: the row of one of its members.
    """
    group = list(range(len(keypoint)))  # of each candidate; a group that was merged leads to the one that it is part of
    keypoint_bits = [1 << index for index in keypoint.tolist()]  # the keypoints of each group, one bit for each
    links: list[dict[int, float]] = [{} for _ in group]  # links[a][b] is the link between groups a and b
    queue = list(zip((-score).tolist(), *ends.T.tolist()))  # (-link, a, b): a heap returns the smallest first
    for negative_link, a, b in queue:
        links[a][b] = links[b][a] = -negative_link
    heapify(queue)
    while queue:
        negative_link, a, b = heappop(queue)
        if links[a].get(b) != -negative_link:  # a or b has been merged since this entry was queued
            continue
        if len(links[a]) < len(links[b]):
            a, b = b, a
        group[b] = a
        keypoint_bits[a] |= keypoint_bits[b]
        # The links of b are added to those of a, which loses its links to groups with a keypoint of b.
        links_of_a, links_of_b, links[b] = links[a], links[b], {}
        del links_of_a[b], links_of_b[a]
        for other, link in links_of_b.items():
            del links[other][b]
            if not keypoint_bits[a] & keypoint_bits[other]:
                link += links_of_a.get(other, 0.0)
                links_of_a[other] = links[other][a] = link
                heappush(queue, (-link, a, other))
        for other in [other for other in links_of_a if keypoint_bits[a] & keypoint_bits[other]]:
            del links_of_a[other], links[other][a]
    label = np.array(group, np.int64)
    while (label != label[label]).any():
        label = label[label]
    return label


def assign_fragments(
    pose_model: PoseModel, position: np.ndarray, score: np.ndarray, limbs_are_complete: bool, max_groups: int
) -> np.ndarray:
    """(G,) the group that each group becomes a part of, whose pose fits it best; itself if it is not assigned.

    ``position`` and ``score`` are (G, K), see ``pose_model``. If the maps show all limbs, a fragment is not assigned to
    a person if the skeleton has a body part between them: the limb of that part would have joined them already. Only
    the ``max_groups`` with the highest sums of scores take part.
    """
    found = score > 0
    total = score.sum(axis=1)
    count = found.sum(axis=1)
    ranked = np.argsort(-total, kind="stable")[:max_groups]
    people = ranked[count[ranked] > 1]
    mean = total / count
    is_possible = (
        ~_have_common(found[ranked], found[people])
        & (total[ranked, None] <= total[people])
        & (mean[ranked, None] >= MIN_SCORE_RATIO * mean[people])
        & (ranked[:, None] != people)
    )
    if limbs_are_complete:
        is_possible &= ~_have_common(found[ranked] @ pose_model.is_part > 0, found[people])
    target = np.arange(len(position))
    row, column = np.nonzero(is_possible)
    if not len(row):
        return target
    cost = _assignment_costs(pose_model, position, found, ranked[row], people[column])
    in_order = np.argsort(cost, kind="stable")[: np.isfinite(cost).sum()]
    receivers: set[int] = set()
    for fragment, person in zip(ranked[row[in_order]].tolist(), people[column[in_order]].tolist()):
        # A group may be both. Once assigned, it receives no fragment; once it has received one, it is not assigned.
        is_free = target[fragment] == fragment and fragment not in receivers and target[person] == person
        if is_free and not (found[fragment] & found[person]).any():
            target[fragment] = person
            receivers.add(person)
            found[person] |= found[fragment]
    return target


def _assignment_costs(
    pose_model: PoseModel, position: np.ndarray, found: np.ndarray, fragment: np.ndarray, person: np.ndarray
) -> np.ndarray:
    """(M,) cost of the assignment of each ``fragment`` to its ``person``, infinite beyond ``MAX_DEVIATION``.

    With d and sigma the distances of the fragment's keypoints from where they are expected in the person and their
    errors (see ``PoseModel.expect_keypoints``), it is a negative log likelihood up to a constant:

        mean(d^2 / sigma^2) + mean(log sigma^2)
    """
    people, row = np.unique(person, return_inverse=True)
    expected, sigma = pose_model.expect_keypoints(position[people], found[people])
    count = found.sum(axis=1)
    # One keypoint of a fragment often shows that the mean of all is beyond the limit.
    keypoint = found.argmax(axis=1)[fragment]
    distance = np.abs(position[fragment, keypoint] - expected[row, keypoint]) / sigma[row, keypoint]
    near = np.flatnonzero(distance**2 <= MAX_DEVIATION**2 * count[fragment])
    fragment, row = fragment[near], row[near]
    share = (found / np.maximum(count, 1)[:, None])[fragment]  # (pairs, K)
    distance = np.abs(position[fragment] - expected[row]) / sigma[row]
    square_deviation = np.einsum("mk,mk->m", share, distance**2)
    log_variance = np.einsum("mk,mk->m", share, np.log(sigma**2)[row])
    cost = np.full(len(person), np.inf)
    cost[near] = np.where(square_deviation <= MAX_DEVIATION**2, square_deviation + log_variance, np.inf)
    return cost


def _have_common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(A, B) whether rows of (A, K) and (B, K) bools have a true value in common."""
    return np.asarray(first.astype(np.float32) @ second.astype(np.float32).T > 0)


def complete_people(
    keypoints: np.ndarray,
    candidates: KeypointCandidates,
    linked: np.ndarray,
    limbs_are_complete: bool,
    pose_model: PoseModel | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Give people the candidates of keypoints that they lack, and estimate where their other missing keypoints are.

    For a person with at least ``MIN_FOR_ESTIMATE`` keypoints, the pose model expects each missing keypoint at some
    position. A candidate counts only up to ``MAX_DEVIATION`` from there. The first of these three that exists is taken:

    1. The nearest candidate that a limb, however weak, connects to the person: it becomes a keypoint of the person. Its
       limb was too weak to group it, or the candidate also belongs to another person, whose keypoint is at the same
       place: the maps have one peak for both.
    2. The nearest other candidate, as the estimate; not if the maps show all limbs.
    3. The expected position, as the estimate.

    For people with fewer keypoints, and without a pose model, the estimate is the mean of the keypoints found.

    Returns:
        (P, K, 3) float32 keypoints as given, and (P, K, 2) float32 estimates in cells; those of keypoints that
        were found have no meaning.
    """
    found = keypoints[..., 2] > 0
    count = found.sum(axis=1)
    position = keypoints[..., 0] + 1j * keypoints[..., 1].astype(np.float64)
    mean = position.sum(axis=1) / np.maximum(count, 1)
    estimate = np.repeat(mean[:, None], keypoints.shape[1], axis=1)
    completed = keypoints.copy()
    rows = np.flatnonzero(count >= MIN_FOR_ESTIMATE)
    if pose_model is None:
        return completed, np.stack([estimate.real, estimate.imag], axis=2).astype(np.float32)
    keypoint = candidates.keypoint
    candidate_position = _complex_positions(candidates)
    step = max(1, DISTANCES_PER_STEP // max(1, len(keypoint)))
    for some in (rows[start : start + step] for start in range(0, len(rows), step)):
        expected, sigma = pose_model.expect_keypoints(position[some], found[some])
        estimate[some] = expected
        limit = np.where(found[some], 0, (MAX_DEVIATION * sigma) ** 2)[:, keypoint]  # (people, N)
        square = (candidate_position.real - expected.real[:, keypoint]) ** 2
        square += (candidate_position.imag - expected.imag[:, keypoint]) ** 2
        row, candidate = np.nonzero(square < limit)
        deviation = square[row, candidate] / limit[row, candidate]
        nearest_last = np.argsort(-deviation, kind="stable")  # of several, the last one stays
        person, candidate = some[row[nearest_last]], candidate[nearest_last]
        if not limbs_are_complete:
            estimate[person, keypoint[candidate]] = candidate_position[candidate]
        is_linked = np.isin(person * len(keypoint) + candidate, linked)
        person, candidate = person[is_linked], candidate[is_linked]
        completed[person, keypoint[candidate], :2] = candidates.xy[candidate]
        completed[person, keypoint[candidate], 2] = candidates.score[candidate]
    return completed, np.stack([estimate.real, estimate.imag], axis=2).astype(np.float32)


def _complex_positions(candidates: KeypointCandidates) -> np.ndarray:
    """(N,) complex, x + iy in cells."""
    return np.asarray(candidates.xy[:, 0] + 1j * candidates.xy[:, 1].astype(np.float64))


def _consecutive(label: np.ndarray) -> np.ndarray:
    """Labels renumbered from 0, in the same order."""
    return np.unique(label, return_inverse=True)[1]


def _group_arrays(
    label: np.ndarray, candidates: KeypointCandidates, position: np.ndarray, num_keypoints: int
) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the scores of G groups, (G, K) each; see ``pose_model``."""
    shape = label.max(initial=-1) + 1, num_keypoints
    z = np.zeros(shape, np.complex128)
    score = np.zeros(shape)
    z[label, candidates.keypoint] = position
    score[label, candidates.keypoint] = candidates.score
    return z, score


def _share_of_limbs_within(limbs: Limbs, label: np.ndarray, num_groups: int) -> np.ndarray:
    """(G,) last factor of the scores of all groups; see ``assemble_people``."""
    first, second = label[limbs.ends].T
    is_within = first == second
    within = np.bincount(first[is_within], limbs.score[is_within], num_groups)
    across = np.bincount(first[~is_within], limbs.score[~is_within], num_groups)
    across += np.bincount(second[~is_within], limbs.score[~is_within], num_groups)
    return np.asarray((within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR))


def _missing_limb_share(limbs: Limbs, label: np.ndarray, found: np.ndarray, is_part: np.ndarray) -> float:
    """(m + 1/2) / (n + 1), where m of the n body parts inside people have no limb: the share is high if n is small.

    ``found``, (G, K), are the keypoints of each group; ``is_part``, (K, K), is whether a body part connects two.
    """
    num_parts = float((found @ is_part.astype(np.float32) * found).sum()) / 2
    first, second = label[limbs.ends].T
    num_limbs = np.count_nonzero(first == second)
    return (num_parts - num_limbs + 0.5) / (num_parts + 1)
