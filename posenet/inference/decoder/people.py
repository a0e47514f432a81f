"""From keypoint candidates and limbs to people.

This module needs only NumPy. It finds people in the output of an exported network without PyTorch and OpenCV.
"""

from __future__ import annotations

import numpy as np

from posenet.inference.decoder.candidates import KeypointCandidates, Limbs
from posenet.inference.decoder.grouping import group_candidates
from posenet.inference.decoder.pose_model import pose_model_of, refine_keypoints
from posenet.inference.person import Person
from posenet.settings import MAP_STRIDE
from posenet.skeleton import COCO, Skeleton

MIN_KEYPOINTS = 1
"""People with fewer keypoints are dropped."""
MIN_SCORE = 0.05
"""People with a lower score are dropped."""
MIN_LIMB_SCORE = 0.001
"""Limbs with a lower limb score are dropped."""
MIN_SHARE_OF_BEST = 0.35
"""Limbs with less than this share of the score of the best limb of the same body part at either end are dropped."""
MAX_MISSING_LIMBS = 0.01
"""If fewer of the body parts inside people lack a limb, the maps are taken to show all limbs."""
LIMB_SCORE_FLOOR = 0.05
"""Added to sums of limb scores in the score of a person, so that weak limbs hardly matter."""
MIN_KEYPOINTS_OF_SHARER = 3
"""People with fewer keypoints share no candidate of another person."""
MIN_SHARED_PARTS = 2
"""A person shares a candidate only if at least as many body parts connect its keypoint to others of the person."""
MIN_SHARED_SUPPORT = 0.5
"""Smallest mean limb score of a shared candidate, as a share of the mean inside the person."""


def decode_candidates(
    peaks: np.ndarray,
    pairs: np.ndarray,
    limb_scores: np.ndarray,
    *,
    stride: int = MAP_STRIDE,
    min_keypoints: int = MIN_KEYPOINTS,
    min_score: float = MIN_SCORE,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people among the candidates of one image, as ``CandidateSelector`` or an exported network returns them.

    Args:
        peaks: (K, M, 3) x and y in map cells, and score. A row with score 0 is no candidate.
        pairs: (L, 3) integers: body part, and the rows of its two ends in ``peaks.reshape(K * M, 3)``.
        limb_scores: (L,) limb score of each pair. A pair with a score of 0 or less is no limb.

    The other arguments and the result are those of ``decode``.

    Raises:
        ValueError: the shapes of the arrays do not fit each other or the skeleton.
    """
    peaks = np.asarray(peaks, np.float32)
    pairs = np.asarray(pairs)
    limb_scores = np.asarray(limb_scores, np.float32)
    if peaks.ndim != 3 or (len(peaks), peaks.shape[2]) != (skeleton.num_keypoints, 3):
        raise ValueError(f"peaks must be ({skeleton.num_keypoints}, M, 3), not {peaks.shape}")
    if pairs.shape != (len(limb_scores), 3):
        raise ValueError(f"pairs must be ({len(limb_scores)}, 3), one row for each limb score, not {pairs.shape}")
    candidate_row = (peaks[..., 2].ravel() > 0).cumsum() - 1  # row of ``peaks`` to row of ``candidates``
    candidates = list_candidates(peaks)
    is_limb = limb_scores > 0
    limbs = Limbs(part=pairs[is_limb, 0], ends=candidate_row[pairs[is_limb, 1:]], score=limb_scores[is_limb])
    return assemble_people(
        candidates, limbs, stride=stride, min_keypoints=min_keypoints, min_score=min_score, skeleton=skeleton
    )


def list_candidates(peaks: np.ndarray) -> KeypointCandidates:
    """The candidates in (K, M, 3) ``peaks``, whose rows with score 0 are no candidates."""
    keypoint, row = np.nonzero(peaks[..., 2] > 0)
    found = peaks[keypoint, row]
    return KeypointCandidates(keypoint=keypoint, xy=found[:, :2], score=found[:, 2])


def assemble_people(
    candidates: KeypointCandidates,
    limbs: Limbs,
    *,
    stride: int,
    min_keypoints: int,
    min_score: float,
    skeleton: Skeleton,
) -> list[Person]:
    """Group candidates into people. The arguments and the result are those of ``decode``.

    A person with n of K keypoints, of scores s_i, has the score

        mean(s) sqrt(n / K) (within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR),

    where "within" is the sum of the limb scores inside the person, and "across" that of the limbs to other people: the
    more of its limbs lead elsewhere, the less certain it is that the keypoints belong together. ``min_score`` applies
    to the product without this last factor. Keypoints that the person shares with another one do not count.

    At the end, the pose model refines the positions (``refine_keypoints``).
    """
    limbs = drop_weak_limbs(limbs, len(candidates.score), skeleton)
    label = label_people(candidates, limbs, skeleton)
    count = np.bincount(label)
    score = np.bincount(label, candidates.score) / np.sqrt(np.maximum(count, 1) * skeleton.num_keypoints)
    is_kept = (count >= max(min_keypoints, 1)) & (score >= min_score)
    score *= _share_of_limbs_within(limbs, label)
    kept = np.flatnonzero(is_kept)
    kept = kept[np.argsort(-score[kept], kind="stable")]  # labels, highest score first

    row = np.full(len(count), -1)  # label to row of the result; -1 where the person is dropped
    row[kept] = np.arange(len(kept))
    owner = row[label]
    person, candidate = share_candidates(candidates, limbs, owner, len(kept), skeleton)
    keypoint = candidates.keypoint[candidate]
    keypoints = np.zeros((len(kept), skeleton.num_keypoints, 3), np.float32)
    keypoints[person, keypoint, :2] = candidates.xy[candidate] * stride + (stride - 1) / 2
    keypoints[person, keypoint, 2] = candidates.score[candidate]
    keypoints = refine_keypoints(keypoints, skeleton)
    return [Person(rows, value, skeleton) for rows, value in zip(keypoints, score[kept].tolist())]


def _share_of_limbs_within(limbs: Limbs, label: np.ndarray) -> np.ndarray:
    """(G,) last factor of the scores of all groups; see ``assemble_people``."""
    first, second = label[limbs.ends].T
    num_groups = int(label.max(initial=-1)) + 1
    is_within = first == second
    within = np.bincount(first[is_within], limbs.score[is_within], num_groups)
    across = np.bincount(first[~is_within], limbs.score[~is_within], num_groups)
    across += np.bincount(second[~is_within], limbs.score[~is_within], num_groups)
    return np.asarray((within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR))


def share_candidates(
    candidates: KeypointCandidates, limbs: Limbs, owner: np.ndarray, num_people: int, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """Let people who lack a keypoint share the candidate of another person if the limbs support both.

    Where the same keypoints of two people coincide, the maps have one peak for both. Let a person lack a keypoint that
    at least ``MIN_SHARED_PARTS`` body parts connect to keypoints of the person. Of all candidates for it, the person
    gets the one with the highest mean limb score over these body parts, 0 for those without a limb, if that mean is at
    least ``MIN_SHARED_SUPPORT`` of the mean limb score of the body parts inside the person.

    Args:
        owner: (N,) row of the person that each candidate belongs to, or -1.

    Returns:
        Person and candidate of every keypoint found: the N' candidates with an owner, then the shared ones.
    """
    owned = np.flatnonzero(owner >= 0)
    size = np.bincount(owner[owned], minlength=num_people)
    sharers = np.flatnonzero(size >= MIN_KEYPOINTS_OF_SHARER)
    row = np.full(num_people + 1, -1)  # person to row of ``sharers``; the last one is for the owner -1
    row[sharers] = np.arange(len(sharers))
    row_of_candidate = row[owner]
    first, second = limbs.ends.T
    # Each limb supports the candidate at one end for the person at the other.
    supporter = np.concatenate([row_of_candidate[first], row_of_candidate[second]])
    supported = np.concatenate([second, first])
    limb_score = np.concatenate([limbs.score, limbs.score])
    is_inside = supporter == row_of_candidate[supported]

    is_part = np.zeros((skeleton.num_keypoints, skeleton.num_keypoints))
    is_part[tuple(skeleton.part_ends.T)] = 1
    is_part += is_part.T
    is_found = np.zeros((len(sharers), skeleton.num_keypoints))
    members = np.flatnonzero(row_of_candidate >= 0)
    is_found[row_of_candidate[members], candidates.keypoint[members]] = 1
    num_parts = is_found @ is_part  # (S, K) body parts from each keypoint to the keypoints found
    chosen = (supporter >= 0) & is_inside
    inside = np.bincount(supporter[chosen], limb_score[chosen], len(sharers))
    mean_inside = inside / np.maximum((num_parts * is_found).sum(axis=1), 1)

    chosen = (supporter >= 0) & ~is_inside
    pair = supporter[chosen] * len(owner) + supported[chosen]  # of a person and a candidate of somebody else
    pair, index = np.unique(pair, return_inverse=True)
    person = pair // max(len(owner), 1)
    candidate = pair - person * len(owner)
    keypoint = candidates.keypoint[candidate]
    parts = num_parts[person, keypoint]
    support = np.bincount(index, limb_score[chosen], len(pair)) / np.maximum(parts, 1)
    is_shared = (
        (is_found[person, keypoint] == 0)
        & (parts >= MIN_SHARED_PARTS)
        & (support >= MIN_SHARED_SUPPORT * mean_inside[person])
    )
    shared = np.flatnonzero(is_shared)
    shared = shared[np.argsort(support[shared], kind="stable")]  # the best is written last
    best = np.full(is_found.shape, -1)
    best[person[shared], keypoint[shared]] = candidate[shared]
    person, keypoint = np.nonzero(best >= 0)
    return (
        np.concatenate([owner[owned], sharers[person]]),
        np.concatenate([owned, best[person, keypoint]]),
    )


def drop_weak_limbs(limbs: Limbs, num_candidates: int, skeleton: Skeleton) -> Limbs:
    """The limbs that are neither weak nor much weaker than another limb of the same part at one of their ends."""
    best = np.zeros((skeleton.num_parts, num_candidates), np.float32)  # best limb score of a part at a candidate
    for end in limbs.ends.T:
        np.maximum.at(best, (limbs.part, end), limbs.score)
    best_rival = best[limbs.part[:, None], limbs.ends].max(axis=1)
    kept = limbs.score > np.maximum(MIN_LIMB_SCORE, MIN_SHARE_OF_BEST * best_rival)
    return Limbs(limbs.part[kept], limbs.ends[kept], limbs.score[kept])


def label_people(candidates: KeypointCandidates, limbs: Limbs, skeleton: Skeleton) -> np.ndarray:
    """(N,) label of the person that each candidate belongs to. The labels are not consecutive.

    First, the candidates are grouped by their limbs. Second, the pose model estimates the sizes of these people; the
    scores of limbs that are too long for their person are lowered, and the candidates are grouped again. Third,
    fragments that no limb connects are assigned to people, unless the maps are so clear that the limb would be there.
    A skeleton without a layout has no pose model and skips the last two steps.
    """
    label = group_candidates(candidates.keypoint, limbs.ends, limbs.score)
    if not skeleton.layout or not len(label):
        return label
    pose_model = pose_model_of(skeleton)
    position = candidates.xy[:, 0] + 1j * candidates.xy[:, 1].astype(np.float64)
    end_labels = label[limbs.ends]
    scale = pose_model.estimate_poses(position, candidates.keypoint, label).scale[end_labels].max(axis=1)
    length = np.abs(position[limbs.ends[:, 1]] - position[limbs.ends[:, 0]])
    factor = pose_model.length_factor(length, limbs.part, scale)
    is_within_person = end_labels[:, 0] == end_labels[:, 1]
    if (factor[is_within_person] < 1).any():
        label = group_candidates(candidates.keypoint, limbs.ends, limbs.score * factor)
    limbs_are_complete = _missing_limb_share(candidates.keypoint, limbs, label, pose_model.is_part) < MAX_MISSING_LIMBS
    return pose_model.assign_fragments(position, candidates.keypoint, candidates.score, label, limbs_are_complete)


def _missing_limb_share(keypoint: np.ndarray, limbs: Limbs, label: np.ndarray, is_part: np.ndarray) -> float:
    """Share of the body parts inside people that have no limb, estimated cautiously if there are few body parts.

    With m of n limbs missing, it is (m + 1/2) / (n + 1).
    """
    has_keypoint = np.zeros((len(label), len(is_part)), np.float32)
    has_keypoint[label, keypoint] = 1
    num_parts = float((has_keypoint @ is_part * has_keypoint).sum()) / 2
    end_labels = label[limbs.ends]
    num_limbs = np.count_nonzero(end_labels[:, 0] == end_labels[:, 1])
    return (num_parts - num_limbs + 0.5) / (num_parts + 1)
