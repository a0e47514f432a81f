"""Annotated people as arrays, without files."""

from __future__ import annotations

import numpy as np
from posenet.benchmark.targets import standing_people

from posenet.annotations.coco_dataset import PersonAnnotation


def two_people() -> np.ndarray:
    """(2, 18, 3) joints."""
    return standing_people(np.random.default_rng(3), 2, (256, 256))


def annotations(*people: np.ndarray) -> list[PersonAnnotation]:
    """Annotations of people with these joints."""
    box = np.array([0, 0, 1, 1], np.float32)
    return [
        PersonAnnotation(i, joints, int((joints[:, 2] > 0).sum()), box, 100.0**2, False, None)
        for i, joints in enumerate(people)
    ]
