"""Trails of tracked people: where they were in the last seconds."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import cv2
import numpy as np

from posenet.inference.media.sources import Frame, Source
from posenet.inference.person import Person
from posenet.visualization.people import person_colour

SECONDS = 2.0
"""Length of a trail."""


class _Trail:
    """The path of one person. It follows the keypoints found in both of two frames: others would let it jump."""

    def __init__(self, person: Person) -> None:
        self.points: deque[tuple[float, np.ndarray]] = deque()
        self._centre = person.box().reshape(2, 2).mean(0)
        self._person = person

    def extend(self, person: Person, seconds: float) -> None:
        both = person.found & self._person.found
        if both.any():
            self._centre = self._centre + (person.keypoints - self._person.keypoints)[both, :2].mean(0)
        else:
            self._centre = person.box().reshape(2, 2).mean(0)
        self._person = person
        self.points.append((seconds, self._centre))


class Trails:
    """Draws the path of every person in the colour of the person; older parts are thinner."""

    def __init__(self) -> None:
        self._source: Source | None = None
        self._trails: dict[int, _Trail] = {}

    def draw(self, drawing: np.ndarray, frame: Frame, people: Sequence[Person]) -> None:
        """Add the trails of the people who have an ``id`` to the drawing of a frame."""
        if frame.source != self._source:
            self._source = frame.source
            self._trails = {}
        for person in people:
            if person.id is not None:
                self._trails.setdefault(person.id, _Trail(person)).extend(person, frame.seconds)
        widest = max(2, max(drawing.shape[:2]) // 200)
        for id, trail in list(self._trails.items()):
            while trail.points and frame.seconds - trail.points[0][0] > SECONDS:
                trail.points.popleft()
            if not trail.points:
                del self._trails[id]
            for (_, start), (time, end) in itertools.pairwise(trail.points):
                width = max(1, round(widest * (1 - (frame.seconds - time) / SECONDS)))
                cv2.line(drawing, _pixel(start), _pixel(end), person_colour(id), width, cv2.LINE_AA)


def _pixel(point: np.ndarray) -> tuple[int, int]:
    x, y = point.round().astype(int).tolist()
    return x, y
