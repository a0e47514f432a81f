"""Keypoint candidates and limbs to people.

Needs NumPy only: where another program has selected the candidates, such as an exported network, people are found
without PyTorch and OpenCV.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from posenet.inference.decoder.grouping import join
from posenet.inference.decoder.pose_model import Anatomy
from posenet.inference.person import Person
from posenet.skeleton import COCO, Skeleton

CEILING = 2.0
"""Scores are meant to lie in 0-1; larger ones are cut here, so that an infinity stays harmless."""
PROBES = np.array([0.25, 0.5, 0.75], np.float32)
"""Where, between its ends, a limb is looked at first."""
SAMPLES = np.linspace(0, 1, 10, dtype=np.float32)
"""Where a limb that stands the first look is compared with its body-part map."""
MAX_PEAKS = 40
"""Candidates of each keypoint that are looked at."""
MAX_LIMBS = 1500
"""Limbs that are looked at closely, those with the best probes and ends first."""

LEAST = 0.001
"""Limbs with less evidence do not count."""
RIVAL = 0.35
"""Nor do those with less than this share of the best limb of the same part at either end."""


@dataclass(frozen=True)
class Peaks:
    """Keypoint candidates, sorted by keypoint and then by falling score.

    Attributes:
        keypoint: (N,) int, which keypoint.
        xy: (N, 2) float32, in map cells.
        score: (N,) float32.
    """

    keypoint: np.ndarray
    xy: np.ndarray
    score: np.ndarray


@dataclass(frozen=True)
class Limbs:
    """Pairs of peaks that a body part may join.

    Attributes:
        part: (M,) int, which body part.
        ends: (M, 2) int, rows of the peaks.
        evidence: (M,) float32 above 0: how well the maps support the limb.
    """

    part: np.ndarray
    ends: np.ndarray
    evidence: np.ndarray


def unrivalled(limbs: Limbs, count: int, skeleton: Skeleton = COCO) -> Limbs:
    """The limbs with evidence that no other of the same part at either end outdoes by far.

    Args:
        count: number of peaks.
    """
    best = np.zeros((skeleton.num_parts, count), np.float32)
    for end in limbs.ends.T:
        np.maximum.at(best, (limbs.part, end), limbs.evidence)
    good = limbs.evidence > np.maximum(LEAST, RIVAL * best[limbs.part[:, None], limbs.ends].max(axis=1))
    return Limbs(limbs.part[good], limbs.ends[good], limbs.evidence[good])


def decode_candidates(
    peaks: np.ndarray,
    pairs: np.ndarray,
    evidence: np.ndarray,
    *,
    stride: int = 4,
    min_keypoints: int = 1,
    min_score: float = 0.05,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people among one image's candidates, as an exported network or ``Candidates`` gives them.

    Args:
        peaks: (K, M, 3) x and y in map cells and score; score 0 is no candidate.
        pairs: (L, 3) integers: body part, and at both its ends the rows of ``peaks.reshape(K * M, 3)``.
        evidence: (L,) of each pair; 0 or less is no limb.

    The other arguments and the result are those of ``decode``.

    Raises:
        ValueError: arrays that do not fit each other or the skeleton.
    """
    peaks, pairs, evidence = np.asarray(peaks, np.float32), np.asarray(pairs), np.asarray(evidence, np.float32)
    if peaks.ndim != 3 or (len(peaks), peaks.shape[2]) != (skeleton.num_keypoints, 3):
        raise ValueError(f"peaks must be ({skeleton.num_keypoints}, M, 3), not {peaks.shape}")
    if pairs.shape != (len(evidence), 3):
        raise ValueError(
            f"pairs must be ({len(evidence)}, 3), as there are so many values of evidence, not {pairs.shape}"
        )
    flat = peaks.reshape(-1, 3)
    found = flat[:, 2] > 0
    row = found.cumsum() - 1
    pairs, evidence = pairs[evidence > 0], evidence[evidence > 0]
    candidates = Peaks(np.flatnonzero(found) // peaks.shape[1], flat[found, :2], flat[found, 2])
    limbs = unrivalled(Limbs(pairs[:, 0], row[pairs[:, 1:]], evidence), len(candidates.score), skeleton)
    return assemble(
        candidates, limbs, stride=stride, min_keypoints=min_keypoints, min_score=min_score, skeleton=skeleton
    )


def assemble(
    peaks: Peaks,
    limbs: Limbs,
    *,
    stride: int = 4,
    min_keypoints: int = 1,
    min_score: float = 0.05,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Group the peaks into people; see ``decode`` for the arguments and the result."""
    label = _group(peaks, limbs, skeleton)
    count = np.bincount(label)
    score = np.bincount(label, peaks.score) / np.sqrt(np.maximum(count, 1) * skeleton.num_keypoints)
    chosen = np.flatnonzero((count >= max(min_keypoints, 1)) & (score >= min_score))
    chosen = chosen[np.argsort(-score[chosen], kind="stable")]
    row = np.full(len(count), -1)
    row[chosen] = np.arange(len(chosen))
    shown = row[label] >= 0 if len(label) else np.zeros(0, bool)
    keypoints = np.zeros((len(chosen), skeleton.num_keypoints, 3), np.float32)
    place = (row[label[shown]], peaks.keypoint[shown])
    keypoints[(*place, slice(0, 2))] = peaks.xy[shown] * stride + (stride - 1) / 2
    keypoints[(*place, 2)] = peaks.score[shown]
    return [Person(own, value, skeleton) for own, value in zip(keypoints, score[chosen].tolist())]


@cache
def _anatomy(skeleton: Skeleton) -> Anatomy:
    return Anatomy(skeleton)


def _group(peaks: Peaks, limbs: Limbs, skeleton: Skeleton) -> np.ndarray:
    """(N,) label of the person that each peak belongs to."""
    label = join(peaks.keypoint, limbs.ends, limbs.evidence)
    if not skeleton.layout or not len(label):
        return label
    anatomy = _anatomy(skeleton)
    place = peaks.xy[:, 0] + 1j * peaks.xy[:, 1].astype(np.float64)
    # Once people are known roughly, so is how long their limbs can be.
    owners = label[limbs.ends]
    scale = anatomy.measure(place, peaks.keypoint, label).scale[owners].max(axis=1)
    length = np.abs(place[limbs.ends[:, 1]] - place[limbs.ends[:, 0]])
    fit = anatomy.likely_length(length, limbs.part, scale)
    if (fit[owners[:, 0] == owners[:, 1]] < 1).any():
        label = join(peaks.keypoint, limbs.ends, limbs.evidence * fit)
    return anatomy.adopt(place, peaks.keypoint, peaks.score, label)
