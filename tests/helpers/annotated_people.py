"""Annotated people as arrays, without files."""

from __future__ import annotations

import numpy as np

from posenet.annotations.people import People
from tests.helpers.standing_people import standing_people


def two_people() -> np.ndarray:
    """(2, 18, 3) joints."""
    return standing_people(np.random.default_rng(3), 2, (256, 256))


def annotations(*people: np.ndarray) -> People:
    """Annotations of people with these joints."""
    joints = np.array(people).reshape(-1, 18, 3)
    count = len(joints)
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (count, 1))
    areas = np.full(count, 100.0**2, np.float32)
    num_labelled = (joints[..., 2] > 0).sum(axis=1)
    return People(np.arange(count), joints, num_labelled, boxes, areas, np.zeros(count, bool), [None] * count)
