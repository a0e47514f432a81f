"""From keypoint candidates and limbs to people.

This module needs only NumPy. It finds people in the output of an exported network without PyTorch and OpenCV.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from posenet.inference.decoder.candidates import KeypointCandidates, Limbs
from posenet.inference.decoder.grouping import group_candidates
from posenet.inference.decoder.pose_model import PoseModel
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
    flat = peaks.reshape(-1, 3)
    is_candidate = flat[:, 2] > 0
    candidate_row = is_candidate.cumsum() - 1  # row of ``peaks`` to row of ``candidates``
    candidates = KeypointCandidates(
        keypoint=np.flatnonzero(is_candidate) // peaks.shape[1], xy=flat[is_candidate, :2], score=flat[is_candidate, 2]
    )
    is_limb = limb_scores > 0
    limbs = Limbs(part=pairs[is_limb, 0], ends=candidate_row[pairs[is_limb, 1:]], score=limb_scores[is_limb])
    return assemble_people(
        candidates, limbs, stride=stride, min_keypoints=min_keypoints, min_score=min_score, skeleton=skeleton
    )


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

    A person with n of K keypoints, of scores s_i, has the score mean(s) sqrt(n / K) = sum(s) / sqrt(n K).
    """
    label = label_people(candidates, drop_weak_limbs(limbs, len(candidates.score), skeleton), skeleton)
    count = np.bincount(label)
    score = np.bincount(label, candidates.score) / np.sqrt(np.maximum(count, 1) * skeleton.num_keypoints)
    kept = np.flatnonzero((count >= max(min_keypoints, 1)) & (score >= min_score))
    kept = kept[np.argsort(-score[kept], kind="stable")]  # labels, highest score first

    row = np.full(len(count), -1)  # label to row of the result; -1 where the person is dropped
    row[kept] = np.arange(len(kept))
    row_of_candidate = row[label]
    is_kept = row_of_candidate >= 0
    person = row_of_candidate[is_kept]
    keypoint = candidates.keypoint[is_kept]
    keypoints = np.zeros((len(kept), skeleton.num_keypoints, 3), np.float32)
    keypoints[person, keypoint, :2] = candidates.xy[is_kept] * stride + (stride - 1) / 2
    keypoints[person, keypoint, 2] = candidates.score[is_kept]
    return [Person(rows, value, skeleton) for rows, value in zip(keypoints, score[kept].tolist())]


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
    fragments that no limb connects are assigned to people. A skeleton without a layout has no pose model and skips the
    last two steps.
    """
    label = group_candidates(candidates.keypoint, limbs.ends, limbs.score)
    if not skeleton.layout or not len(label):
        return label
    pose_model = _pose_model(skeleton)
    position = candidates.xy[:, 0] + 1j * candidates.xy[:, 1].astype(np.float64)
    end_labels = label[limbs.ends]
    scale = pose_model.estimate_poses(position, candidates.keypoint, label).scale[end_labels].max(axis=1)
    length = np.abs(position[limbs.ends[:, 1]] - position[limbs.ends[:, 0]])
    factor = pose_model.length_factor(length, limbs.part, scale)
    is_within_person = end_labels[:, 0] == end_labels[:, 1]
    if (factor[is_within_person] < 1).any():
        label = group_candidates(candidates.keypoint, limbs.ends, limbs.score * factor)
    return pose_model.assign_fragments(position, candidates.keypoint, candidates.score, label)


@cache
def _pose_model(skeleton: Skeleton) -> PoseModel:
    """The pose model of a skeleton, built once."""
    return PoseModel(skeleton)
