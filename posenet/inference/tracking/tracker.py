"""Gives every person of a video an identity: ``Tracker`` for any program, and ``track_people`` for results."""

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from posenet.inference.media.frames import DEFAULT_FRAME_RATE, IN_MEMORY, Source
from posenet.inference.result import Result
from posenet.inference.tracking.motion import KEEP_SECONDS, Motion, Smoother
from posenet.person import Person, require_people
from posenet.settings import TrackingConfig
from posenet.skeleton import Skeleton

MIN_AGREEMENT = 0.02
"""Smallest agreement, 0-1, of a person with a track's prediction (``Motion.similarity``): people who jump are kept."""
MAX_MISSES = 1
"""Every track survives this many missed frames in a row, within ``KEEP_SECONDS``."""
PATIENCE = 2.0
"""A confirmed track survives without its person for this many times the time from the first to the last sighting. If
tracks of false people, who are seen for a moment, survived longer, they would attract other people."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Track:
    """The history of a track; its motion is the row of the same number in ``Motion``. Times are in seconds."""

    first_seen: float
    last_seen: float
    id: int = 0
    """0 until the track is confirmed."""
    is_over: bool = False
    """Whether the track is forgotten."""
    sightings: int = 0
    """Frames with the person."""
    misses: int = 0
    """Frames since the last one with the person."""


class Tracker:
    """Recognises people from frame to frame by their keypoints and their motion.

    It needs neither images nor a network: the people may come from anywhere.

        tracker = posenet.Tracker()
        for time, people in frames:
            for person in tracker.update(people, time):
                print(time, person.id, person.named())

    Args:
        settings: ``tracking`` section of the configuration; None uses its defaults.
    """

    def __init__(self, settings: TrackingConfig | None = None) -> None:
        self.settings = settings or TrackingConfig()
        self._smoother = Smoother() if self.settings.smooth else None
        self._motion: Motion | None = None
        self._skeleton: Skeleton | None = None
        self._tracks: list[Track] = []
        self._time = -math.inf
        self._last_id = 0

    def update(self, people: Iterable[Person], time: float) -> list[Person]:
        """Identify the people of the next frame.

        Args:
            people: of one skeleton, with keypoints in pixels of the frame.
            time: of the frame, in seconds. The time between frames may vary.

        Returns:
            The people who are recognised, in the order of ``people``. ``id`` is an integer from 1, and no two people of
            a video have the same. A person is left out until seen in ``confirm_frames`` frames. If ``smooth`` is
            set, the keypoints are smoothed.

        Raises:
            ValueError: ``time`` is not finite or before the last frame, people have another skeleton than before, or
                they are none.
        """
        return self.identify(self.follow(people, time), time)

    def follow(self, people: Iterable[Person], time: float) -> list[tuple[Person, Track]]:
        """The people of the next frame, each with its track, which a later frame may confirm; see ``update``."""
        if not (math.isfinite(time) and time >= self._time):
            raise ValueError(f"frame at {time} s after a frame at {self._time} s: give the times in order")
        people = require_people(people)
        for person in people:
            self._skeleton = self._skeleton or person.skeleton
            if person.skeleton != self._skeleton:
                raise ValueError("people of another skeleton than before; use a tracker for each skeleton")
        seconds = time - self._time
        self._time = time
        if self._skeleton is None:
            return []
        if self._motion is None:
            self._motion = Motion(np.array(self._skeleton.sigmas))
        self._forget(self._motion)
        if self._tracks:
            self._motion.predict(seconds)
        nobody = np.zeros((0, len(self._skeleton.sigmas), 3))
        keypoints = np.stack([person.to_coco() for person in people]) if people else nobody  # (P, F, 3)
        return list(zip(people, self._match(self._motion, keypoints[..., :2].astype(float), keypoints[..., 2] > 0)))

    def identify(self, followed: Iterable[tuple[Person, Track]], time: float) -> list[Person]:
        """Of what ``follow`` has returned for a frame, the people whose tracks are confirmed, with their ids."""
        identified = [dataclasses.replace(person, id=track.id) for person, track in followed if track.id]
        return self._smoother.update(identified, time) if self._smoother else identified

    def _match(self, motion: Motion, points: np.ndarray, found: np.ndarray) -> list[Track]:
        """The track of each person; people whom no track expects start one."""
        from scipy.optimize import linear_sum_assignment  # importing it takes a while, and images need no tracker

        agreement, likelihood = motion.similarity(points, found)
        gains = np.where(agreement >= MIN_AGREEMENT, likelihood, 0)
        rows, columns = linear_sum_assignment(gains, maximize=True)
        has_gain = gains[rows, columns] > 0
        rows, columns = rows[has_gain], columns[has_gain]
        motion.update(rows, points[columns], found[columns])
        for track in self._tracks:
            track.misses += 1
        tracks = {column: self._tracks[row] for row, column in zip(rows.tolist(), columns.tolist())}
        new = [column for column in range(len(points)) if column not in tracks]
        motion.add(points[new], found[new])
        for column in new:
            tracks[column] = Track(self._time, self._time)
            self._tracks.append(tracks[column])
        for track in tracks.values():
            track.sightings += 1
            track.misses = 0
            track.last_seen = self._time
            if not track.id and track.sightings >= self.settings.confirm_frames:
                self._last_id += 1
                track.id = self._last_id
        return [tracks[column] for column in range(len(points))]

    def _forget(self, motion: Motion) -> None:
        """Forget the tracks whose person has not been seen for too long."""
        for track in self._tracks:
            waited = self._time - track.last_seen
            is_patient = track.id > 0 and waited <= PATIENCE * (track.last_seen - track.first_seen)
            track.is_over = waited > KEEP_SECONDS or not (is_patient or track.misses <= MAX_MISSES)
        motion.keep(np.array([not track.is_over for track in self._tracks], bool))
        self._tracks = [track for track in self._tracks if not track.is_over]


def track_people(results: Iterable[Result], settings: TrackingConfig) -> Iterator[Result]:
    """Give the people who are recognised in each video an ``id``, which counts from 1; people of images have none.

    A result waits until it is known which of its people are confirmed, some frames later, so that they have their id
    from their first frame. Those of cameras and live streams do not wait. Images that a program holds in memory count
    as frames of one video.
    """
    source: Source | None = None
    tracker, seconds = Tracker(settings), -math.inf
    waiting: deque[tuple[Result, list[tuple[Person, Track]], float]] = deque()

    def take_first() -> Result:
        result, people, seconds = waiting.popleft()
        if result.frame.number is None:  # an image, or a damaged frame
            return result
        return dataclasses.replace(result, people=tracker.identify(people, seconds))

    for count, result in enumerate(results):
        frame = result.frame
        if frame.source == IN_MEMORY and frame.number is None:
            time = count / DEFAULT_FRAME_RATE
            frame = dataclasses.replace(frame, number=count, seconds=time, rate=DEFAULT_FRAME_RATE)
            result = dataclasses.replace(result, frame=frame)
        if frame.source != source:
            while waiting:
                yield take_first()
            source, tracker, seconds = frame.source, Tracker(settings), -math.inf
            if source == IN_MEMORY:
                _log.warning(
                    "images in memory are tracked as %g a second; posenet.Tracker takes their times", DEFAULT_FRAME_RATE
                )
        people: list[tuple[Person, Track]] = []
        if frame.number is not None:
            seconds = max(seconds, frame.seconds)  # the clock of a damaged stream may jump back
            people = tracker.follow(result.people, seconds)
        waiting.append((result, people, seconds))
        while waiting and (
            frame.is_live
            or all(track.id or track.is_over for _, track in waiting[0][1])  # nobody can be confirmed later
        ):
            yield take_first()
    while waiting:
        yield take_first()
