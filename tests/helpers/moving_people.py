"""People whose keypoints are known, to be tracked."""

from __future__ import annotations

import numpy as np

from posenet.person import Person
from tests.helpers.rendered_maps import standing_person


def person_at(x: float, y: float = 200.0, size: float = 0.5, noise: np.ndarray | float = 0.0) -> Person:
    """A person with all keypoints who stands at (x, y); ``noise`` is added to the positions."""
    keypoints = standing_person(x, y, size)
    keypoints[:, :2] += noise
    return Person(keypoints, 0.9)
