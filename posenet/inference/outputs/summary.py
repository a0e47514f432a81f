"""What a prediction has found, how fast, and what it could not read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from posenet.errors import DataError
from posenet.inference.media.sources import Source
from posenet.inference.result import Result
from posenet.messages import pluralize
from posenet.skeleton import COCO, Skeleton
from posenet.visualization.drawing import round_min_score

MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


@dataclass(repr=False)
class PredictionSummary:
    """What has been found in some sources, and which of them could not be read completely."""

    sources: Sequence[Source]
    skeleton: Skeleton = COCO
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of images, video frames, live frames, and detections: people without an id."""
    tracks: set[tuple[Source, int]] = field(default_factory=set)
    """The people with an id."""
    best_score: float = 0.0
    """Highest score, also if it is below the ``min_score`` of the prediction."""
    unreadable: dict[Source, DataError] = field(default_factory=dict)
    """The first error of every source."""
    done: int = 0
    """Inputs that an earlier run has completed; the counts are without them."""
    is_interrupted: bool = False
    seconds: float = 0.0
    """From the first image that was read to the last that was written, without those of an earlier run."""
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds in which each stage of prediction was at work; several are at once."""
    files: list[str] = field(default_factory=list)
    """The files and folders that were written."""

    def add(self, result: Result, failure: DataError | None = None) -> None:
        """Count a result, or the ``failure`` of writing it; log the first error of each source."""
        frame = result.frame
        error = failure or frame.error
        if error:
            if frame.source not in self.unreadable:
                self.unreadable[frame.source] = error
                _log.warning("%s", error)
            return
        self.best_score = max(self.best_score, result.best_score)
        self.tracks.update((frame.source, person.id) for person in result if person.id is not None)
        self.counts["detections"] += sum(person.id is None for person in result)
        self.counts["images" if frame.number is None else "video frames"] += 1
        self.counts["live frames"] += frame.is_live

    @property
    def has_frames(self) -> bool:
        """Whether any frame could be read, by an earlier run too."""
        return self.counts["images"] + self.counts["video frames"] + self.done > 0

    def __repr__(self) -> str:
        return f"<PredictionSummary {self}>"

    def __str__(self) -> str:
        """How many people were found in how many images and frames."""
        images, frames, detections = (self.counts[name] for name in ("images", "video frames", "detections"))
        counts = [pluralize(images, "image")] if images or not frames else []
        if frames:
            counts.append(pluralize(frames, "video frame"))
        if self.tracks:
            people = self.skeleton.count(len(self.tracks), "tracked")
            people += f" and {pluralize(detections, 'detection')}" if detections else ""
        elif frames:
            people = pluralize(detections, "detection")
        else:
            people = self.skeleton.count(detections)
        earlier = f"; {pluralize(self.done, 'input')} done before" if self.done else ""
        return f"{people} in {' and '.join(counts)}{earlier}"

    def speed(self) -> str:
        """Images or frames per second, and the share of the time in which each stage was at work."""
        count = self.counts["images"] + self.counts["video frames"]
        if not count or not self.seconds:
            return ""
        unit = "frames" if self.counts["video frames"] else "images"
        longest_first = sorted(self.busy.items(), key=lambda stage: -stage[1])
        shares = ", ".join(f"{name} {seconds / self.seconds:.0%}" for name, seconds in longest_first)
        return f"{count / self.seconds:.3g} {unit}/s, busy: {shares}"

    def advise_on_min_score(self, min_score: float) -> str:
        """What to say if nobody was found because all scores are below ``min_score``."""
        if self.tracks or self.counts["detections"] or not 0 < self.best_score < min_score:
            return ""
        return (
            f"no {self.skeleton.category} has a score of at least {min_score:g}; the best has {self.best_score:.2f}: "
            f"--min-score {round_min_score(self.best_score):g} shows it"
        )

    def unreadable_error(self) -> DataError | None:
        """An error that names the unreadable sources; None if all could be read."""
        if not self.unreadable:
            return None
        only_images = all(source.kind == "image" for source in self.sources)
        inputs = pluralize(len(self.sources), "image" if only_images else "input")
        problem = "could not be read" if only_images else "could not be read completely"
        names = [source.name for source in self.unreadable]
        shown = ", ".join(names[:MAX_NAMED_FAILURES]) + (" ..." if len(names) > MAX_NAMED_FAILURES else "")
        return DataError(f"{len(names)} of {inputs} {problem}: {shown}")
