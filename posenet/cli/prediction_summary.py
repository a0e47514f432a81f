"""What ``predict`` reports at its end: what it has found, and what it could not read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TextIO

from posenet.errors import DataError
from posenet.inference.media.sources import Frame, Source
from posenet.inference.person import Person
from posenet.messages import pluralize

MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


class PredictionSummary:
    """Counts people, images and video frames, and remembers the sources that could not be read completely."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.num_people = 0
        self.num_images = 0
        self.num_video_frames = 0
        self.has_live_frames = False
        self.is_interrupted = False
        self.unreadable: dict[Source, DataError] = {}
        """The first error of every source."""
        self._sources = sources
        self._tracks: set[tuple[Source, int]] = set()
        self._num_detections = 0  # of people without an id

    def add(self, frame: Frame, people: Sequence[Person]) -> None:
        """Count a frame; log the first error of each source."""
        if frame.error:
            if frame.source not in self.unreadable:
                self.unreadable[frame.source] = frame.error
                _log.warning("%s", frame.error)
            return
        self._tracks.update((frame.source, person.id) for person in people if person.id is not None)
        self._num_detections += sum(person.id is None for person in people)
        if frame.number is None:
            self.num_images += 1
        else:
            self.num_video_frames += 1
            self.has_live_frames = self.has_live_frames or frame.is_live

    def merge(self, others: Sequence[PredictionSummary]) -> PredictionSummary:
        """The sum of the summaries of all processes."""
        total = PredictionSummary(self._sources)
        for other in others:
            total.num_images += other.num_images
            total.num_video_frames += other.num_video_frames
            total.has_live_frames |= other.has_live_frames
            total.is_interrupted |= other.is_interrupted
            total.unreadable |= other.unreadable
            total._tracks |= other._tracks
            total._num_detections += other._num_detections
        return total

    @property
    def has_frames(self) -> bool:
        """Whether any frame could be read."""
        return self.num_images + self.num_video_frames > 0

    def __str__(self) -> str:
        counts = []
        if self.num_images or not self.num_video_frames:
            counts.append(pluralize(self.num_images, "image"))
        if self.num_video_frames:
            counts.append(pluralize(self.num_video_frames, "video frame"))
        if self._tracks:
            people = pluralize(len(self._tracks), "tracked person", "tracked people")
            if self._num_detections:
                people += f" and {pluralize(self._num_detections, 'detection')}"
        elif self.num_video_frames:
            people = pluralize(self._num_detections, "detection")
        else:
            people = pluralize(self._num_detections, "person", "people")
        return f"{people} in {' and '.join(counts)}"

    def report(self, written: Sequence[str], messages: TextIO) -> None:
        """Print the counts and the names of what was written."""
        print(self, file=messages)
        names = [path for path in written if path != "-"]
        if names and self.has_frames:
            print("wrote " + ", ".join(names), file=messages)

    def unreadable_error(self) -> DataError | None:
        """An error that names the unreadable sources; None if all could be read."""
        if not self.unreadable:
            return None
        only_images = all(source.kind == "image" for source in self._sources)
        inputs = pluralize(len(self._sources), "image" if only_images else "input")
        problem = "could not be read" if only_images else "could not be read completely"
        names = [source.name for source in self.unreadable]
        shown = ", ".join(names[:MAX_NAMED_FAILURES]) + (" ..." if len(names) > MAX_NAMED_FAILURES else "")
        return DataError(f"{len(names)} of {inputs} {problem}: {shown}")
