"""Which found keypoint is whose, and what a decoder did wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from posenet.annotations.coco_dataset import PersonAnnotation
from posenet.inference.person import Person
from posenet.skeleton import Skeleton

LIKE = 0.5
"""A keypoint is found where its part of the OKS is at least this."""


def own_sigmas(skeleton: Skeleton) -> np.ndarray:
    """(K,) OKS constants in channel order; a derived keypoint has the mean of its sources'."""
    sigmas = dict(zip(skeleton.file_keypoints, skeleton.sigmas))
    return np.array(
        [
            sigmas.get(name) or np.mean([sigmas[source] for source in skeleton.derived[name]])
            for name in skeleton.keypoints
        ]
    )


def owners(
    truth: Sequence[PersonAnnotation], keypoint: np.ndarray, xy: np.ndarray, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """Give every labelled keypoint the found one of its kind that is nearest in OKS, each one once, best first.

    Args:
        truth: labelled people, P in all.
        keypoint: (N,) which keypoint each found one is.
        xy: (N, 2) where, in pixels of the image.

    Returns:
        (N,) row of the person, -1 for spurious ones, and (N,) distance in pixels, NaN for those.
    """
    owner, distance = np.full(len(keypoint), -1), np.full(len(keypoint), np.nan)
    joints = np.array([person.keypoints for person in truth]).reshape(-1, skeleton.num_keypoints, 3)
    areas = np.array([max(person.area, 1.0) for person in truth])
    for k, sigma in enumerate(own_sigmas(skeleton)):
        rows, people = np.flatnonzero(keypoint == k), np.flatnonzero(joints[:, k, 2] > 0)
        gaps = np.linalg.norm(joints[people, k, None, :2] - xy[rows], axis=2)
        likeness = np.exp(-(gaps**2) / (2 * (2 * sigma) ** 2 * areas[people, None]))
        while likeness.size and likeness.max() >= LIKE:
            a, b = np.unravel_index(likeness.argmax(), likeness.shape)
            owner[rows[b]], distance[rows[b]] = people[a], gaps[a, b]
            likeness[a], likeness[:, b] = 0, 0
    return owner, distance


def compare(
    truth: Sequence[PersonAnnotation], found: Sequence[Person], skeleton: Skeleton
) -> tuple[Counter, np.ndarray]:
    """What became of the people of one image.

    Returns:
        counts (``labelled``: keypoints to be found, ``missed``, ``spurious``, ``misgiven``: found with someone
        else than most of their person's; ``people``: to be found, ``whole``: found in one piece with nobody else's
        keypoints, ``split``: in several pieces; ``merged``: people found that are several) and the distances in
        pixels of the keypoints found.
    """
    truth = [person for person in truth if person.labelled]
    which, keypoint = np.nonzero(np.array([person.found for person in found]).reshape(-1, skeleton.num_keypoints))
    xy = np.array([person.keypoints[:, :2] for person in found]).reshape(-1, skeleton.num_keypoints, 2)[which, keypoint]
    owner, distance = owners(truth, keypoint, xy, skeleton)
    shared = np.zeros((len(truth), len(found) + 1), int)
    np.add.at(shared, (owner[owner >= 0], which[owner >= 0]), 1)
    labelled = sum(int((person.keypoints[:, 2] > 0).sum()) for person in truth)
    main = shared.argmax(axis=1)
    most = shared.max(axis=1)
    counts = Counter(
        labelled=labelled,
        missed=labelled - int(shared.sum()),
        spurious=int((owner < 0).sum()),
        misgiven=int(shared.sum() - most.sum()),
        people=len(truth),
        whole=int(((most > 0) & (most == shared.sum(axis=1)) & (most == shared.sum(axis=0)[main])).sum()),
        split=int(((shared > 0).sum(axis=1) > 1).sum()),
        merged=int(((shared > 0).sum(axis=0) > 1).sum()),
    )
    return counts, distance[owner >= 0]


def grouped_perfectly(
    truth: Sequence[PersonAnnotation], keypoint: np.ndarray, xy: np.ndarray, score: np.ndarray, skeleton: Skeleton
) -> list[Person]:
    """The people that the same keypoint candidates would give if nothing went wrong after finding them."""
    truth = [person for person in truth if person.labelled]
    owner, _ = owners(truth, keypoint, xy, skeleton)
    people = []
    for row in np.unique(owner[owner >= 0]):
        own = owner == row
        keypoints = np.zeros((skeleton.num_keypoints, 3), np.float32)
        keypoints[keypoint[own], :2], keypoints[keypoint[own], 2] = xy[own], score[own]
        rank = float(score[own].sum() / np.sqrt(own.sum() * skeleton.num_keypoints))
        people.append(Person(keypoints, rank, skeleton))
    return people
