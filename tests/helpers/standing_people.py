"""Standing people as arrays of joints."""

from __future__ import annotations

import numpy as np

from posenet.skeleton import COCO

STANDING_POSE = {
    "nose": (0, 0.09),
    "neck": (0, 0.18),
    "Reye": (0.02, 0.07),
    "Rear": (0.045, 0.08),
    "Rsho": (0.11, 0.18),
    "Relb": (0.15, 0.35),
    "Rwri": (0.16, 0.50),
    "Rhip": (0.06, 0.52),
    "Rkne": (0.07, 0.75),
    "Rank": (0.07, 0.95),
}
"""x, y of the middle and right keypoints, as shares of the height. x is the distance from the middle of the body, y the
distance down from the top of the head."""


def standing_people(rng: np.random.Generator, count: int, size: tuple[int, int]) -> np.ndarray:
    """(count, 18, 3) float32: people of random size, position and posture in an input of (height, width) ``size``.

    x and y are in pixels; all keypoints are labelled as visible. The first person is in the middle.
    """
    right = np.array([STANDING_POSE[name.replace("L", "R", 1)] for name in COCO.keypoints])
    pose = right * [[1.0 if name[0] == "L" else -1.0, 1.0] for name in COCO.keypoints]
    is_first = np.arange(count) == 0
    heights = 0.6 * rng.uniform(0.7, 1.3, count) * np.where(is_first, 1.0, rng.uniform(0.3, 1.0, count))
    posture = pose + rng.normal(0, 0.03, (count, *pose.shape))  # (count, 18, 2)
    middle = np.where(is_first[:, None], 0.5, rng.uniform(0.1, 0.9, (count, 2))) * size[::-1]  # (count, 2)
    xy = middle[:, None] + (posture - [0, 0.5]) * heights[:, None, None] * size[0]  # (count, 18, 2)
    return np.concatenate([xy, np.full((*xy.shape[:2], 1), 2.0)], axis=2).astype(np.float32)
