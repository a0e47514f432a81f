"""Gives the people of results an identity: those of each video, from their first frame."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from posenet.inference.media.sources import DEFAULT_FRAME_RATE, IN_MEMORY, Source
from posenet.inference.result import Result
from posenet.inference.tracking.tracker import Track, Tracker
from posenet.person import Person
from posenet.settings import TrackingConfig

LOOK_BACK_BYTES = 256 * 2**20
"""Largest memory of the images that wait until their people are confirmed."""

_log = logging.getLogger(__name__)


def track_people(results: Iterable[Result], settings: TrackingConfig) -> Iterator[Result]:
    """Give the people who are recognised in each video an ``id``, which counts from 1; people of images have none.

    A result waits until it is known which of its people are confirmed, some frames later, so that they have their id
    from their first frame. Those of cameras and live streams do not wait. Images that a program holds in memory count
    as frames of one video.
    """
    source: Source | None = None
    last_number = -1
    waiting: deque[_Followed] = deque()
    for count, result in enumerate(results):
        frame = result.frame
        if frame.source == IN_MEMORY and frame.number is None:
            time = count / DEFAULT_FRAME_RATE
            frame = dataclasses.replace(frame, number=count, seconds=time, rate=DEFAULT_FRAME_RATE)
            result = dataclasses.replace(result, frame=frame)
        is_next = frame.number is None or frame.number > last_number  # a video may follow itself
        if frame.source != source or not is_next:
            yield from map(_Followed.identified, waiting)
            waiting.clear()
            source, tracker, seconds = frame.source, Tracker(settings), -math.inf
            if source == IN_MEMORY:
                _log.warning(
                    "images in memory are tracked as %g a second; posenet.Tracker takes their times", DEFAULT_FRAME_RATE
                )
        people: list[tuple[Person, Track]] = []
        if frame.number is not None:
            last_number = frame.number
            seconds = max(seconds, frame.seconds)  # the clock of a damaged stream may jump back
            people = tracker.follow(result.people, seconds)
        waiting.append(_Followed(result, tracker, people, seconds))
        while waiting and (
            frame.is_live
            or waiting[0].is_decided
            or sum(followed.result.frame.image.nbytes for followed in waiting) > LOOK_BACK_BYTES
        ):
            yield waiting.popleft().identified()
    yield from map(_Followed.identified, waiting)


class _Followed(NamedTuple):
    """A result, and the tracks of its people, some of which may be confirmed later."""

    result: Result
    tracker: Tracker
    people: list[tuple[Person, Track]]
    seconds: float

    @property
    def is_decided(self) -> bool:
        """Whether no person can be confirmed later."""
        return all(track.id or track.is_over for _, track in self.people)

    def identified(self) -> Result:
        """The result with the people who are confirmed; that of an image, or of a damaged frame, as it is."""
        if self.result.frame.number is None:
            return self.result
        return dataclasses.replace(self.result, people=self.tracker.identify(self.people, self.seconds))
