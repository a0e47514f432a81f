"""Group keypoint candidates by the annotations: the people that a decoder without errors would find."""

from __future__ import annotations

import numpy as np

from posenet.annotations.people import People
from posenet.inference.decoder.pose_model import refine_keypoints
from posenet.inference.person import Person
from posenet.skeleton import Skeleton

MIN_SIMILARITY = 0.5
"""A keypoint is found where its contribution to the OKS is at least this."""


def keypoint_sigmas(skeleton: Skeleton) -> np.ndarray:
    """(K,) OKS constants in channel order; a derived keypoint has the mean of its two sources."""
    sigmas = dict(zip(skeleton.file_keypoints, skeleton.sigmas))
    for name, (a, b) in skeleton.derived.items():
        sigmas[name] = (sigmas[a] + sigmas[b]) / 2
    return np.array([sigmas[name] for name in skeleton.keypoints])


def match_to_truth(
    truth: People, keypoint: np.ndarray, xy: np.ndarray, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """Match found keypoints to labelled keypoints of the same kind, each at most once, the most similar first.

    The similarity is the keypoint's contribution to the OKS, exp(-d^2 / (2 (2 sigma)^2 area)).

    Args:
        truth: P people.
        keypoint: (N,) index of each keypoint found.
        xy: (N, 2) its position, in pixels of the image.

    Returns:
        (N,) row of the person in ``truth``, -1 for spurious keypoints; and (N,) distance to the labelled keypoint in
        pixels, NaN for spurious ones.
    """
    owner = np.full(len(keypoint), -1)
    distance = np.full(len(keypoint), np.nan)
    joints = truth.keypoints
    areas = truth.areas.clip(min=1.0)
    for k, sigma in enumerate(keypoint_sigmas(skeleton)):
        rows = np.flatnonzero(keypoint == k)
        people = np.flatnonzero(joints[:, k, 2] > 0)
        gaps = np.linalg.norm(joints[people, k, None, :2] - xy[rows], axis=2)  # (people, rows)
        similarity = np.exp(-(gaps**2) / (2 * (2 * sigma) ** 2 * areas[people, None]))
        while similarity.size and similarity.max() >= MIN_SIMILARITY:
            a, b = np.unravel_index(similarity.argmax(), similarity.shape)
            owner[rows[b]] = people[a]
            distance[rows[b]] = gaps[a, b]
            similarity[a] = 0
            similarity[:, b] = 0
    return owner, distance


def group_by_truth(
    truth: People, keypoint: np.ndarray, xy: np.ndarray, score: np.ndarray, skeleton: Skeleton
) -> list[Person]:
    """The people that keypoint candidates form if each is assigned to the annotated person that it matches.

    The pose model refines their positions, as the decoder does. ``score`` is (N,); the other arguments are those of
    ``match_to_truth``.
    """
    truth = truth.select(truth.is_labelled)
    owner, _ = match_to_truth(truth, keypoint, xy, skeleton)
    people = []
    for row in np.unique(owner[owner >= 0]):
        is_owned = owner == row
        keypoints = np.zeros((skeleton.num_keypoints, 3), np.float32)
        keypoints[keypoint[is_owned], :2] = xy[is_owned]
        keypoints[keypoint[is_owned], 2] = score[is_owned]
        person_score = float(score[is_owned].sum() / np.sqrt(is_owned.sum() * skeleton.num_keypoints))
        people.append(Person(refine_keypoints(keypoints[None], skeleton)[0], person_score, skeleton))
    return people
