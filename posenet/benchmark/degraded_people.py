"""People as an imperfect predictor would find them in a video: the truth, degraded at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenet.inference.person import Person
from posenet.inference.tracking.motion import person_sizes
from posenet.skeleton import COCO
from posenet.synthetic.video import FilmedPerson

MIN_KEYPOINTS = 3
"""A person with fewer visible keypoints cannot be found, and does not count."""
_FALSE_PERSON_STAYS = 0.5
"""Share of the false people that are there in the next frame too."""


@dataclass(frozen=True)
class Degradation:
    """The errors of a predictor."""

    missed: float = 0.0
    """Share of the people that are missed in a frame."""
    hidden: float = 0.0
    """Share of the keypoints of the others that are not found."""
    jitter: float = 0.0
    """Standard deviation of the error of a keypoint's position, in sizes of the person (see ``person_sizes``)."""
    false: float = 0.0
    """Mean number of false people in a frame."""


def is_visible(person: FilmedPerson) -> bool:
    """Whether a person shows enough keypoints to be found."""
    return bool(np.count_nonzero(person.keypoints[:, 2] == 2) >= MIN_KEYPOINTS)


def degrade(
    film: Sequence[Sequence[FilmedPerson]],
    degradation: Degradation,
    rng: np.random.Generator,
    width: int,
    height: int,
) -> list[list[Person]]:
    """The people found in each frame of a video. Only visible keypoints are found."""
    poses = [[to_network_order(person) for person in people if is_visible(person)] for people in film]
    examples = [pose for frame in poses for pose in frame]
    found = []
    false_poses: list[np.ndarray] = []
    for frame in poses:
        false_poses = [pose for pose in false_poses if rng.random() < _FALSE_PERSON_STAYS]
        for _ in range(rng.poisson(degradation.false * (1 - _FALSE_PERSON_STAYS))):
            pose = examples[rng.integers(len(examples))].copy()
            centre = pose[pose[:, 2] > 0, :2].mean(0)
            pose[:, :2] = (pose[:, :2] - centre) * rng.uniform(0.7, 1.4) + rng.random(2) * (width, height)
            false_poses.append(pose)
        seen = [pose for pose in frame if rng.random() >= degradation.missed]
        people = [disturb(pose, degradation, rng) for pose in seen + false_poses]
        found.append([people[index] for index in rng.permutation(len(people))])
    return found


def to_network_order(person: FilmedPerson) -> np.ndarray:
    """(K, 3) x, y and score: 1 for a visible keypoint, else 0."""
    joints: np.ndarray = COCO.to_network_order(person.keypoints[None])[0]
    joints[:, 2] = joints[:, 2] == 2
    return joints


def disturb(pose: np.ndarray, degradation: Degradation, rng: np.random.Generator) -> Person:
    """A person whose keypoints are displaced and partly lost; at least ``MIN_KEYPOINTS`` stay."""
    keypoints = pose.copy()
    is_lost = rng.random(len(pose)) < degradation.hidden
    is_lost[rng.permutation(np.flatnonzero(pose[:, 2]))[:MIN_KEYPOINTS]] = False
    keypoints[is_lost, 2] = 0
    size = person_sizes(pose[None, :, :2], pose[None, :, 2] > 0)[0]
    keypoints[:, :2] += rng.normal(0, degradation.jitter, (len(pose), 2)) * size
    keypoints[keypoints[:, 2] == 0] = 0
    return Person(keypoints, float(keypoints[:, 2].mean()))
