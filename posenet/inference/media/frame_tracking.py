"""Identities of the people in a stream of frames."""

from __future__ import annotations

from collections.abc import Sequence

from posenet.inference.media.sources import Frame, Source
from posenet.inference.person import Person
from posenet.inference.tracking.tracker import Tracker
from posenet.settings import TrackingConfig


class FrameTracker:
    """Identifies the people of one video or camera after the other. The ids of each start at 1."""

    def __init__(self, settings: TrackingConfig) -> None:
        self.settings = settings
        self._source: Source | None = None

    def update(self, frame: Frame, people: Sequence[Person]) -> list[Person]:
        """The people who are recognised, each with an ``id``; all people of an image file, without one."""
        if frame.number is None:
            return list(people)
        if frame.source != self._source:
            self._source = frame.source
            self._tracker = Tracker(self.settings)
            self._seconds = frame.seconds
        self._seconds = max(self._seconds, frame.seconds)  # the clock of a damaged stream may jump back
        return self._tracker.update(people, self._seconds)
