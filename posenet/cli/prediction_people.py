"""The files of people that ``predict`` writes, its progress file, and its summary."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from posenet.cli.options import select_exif_frame
from posenet.errors import DataError
from posenet.files import is_standard_output, name_file_in_errors, resolve_link
from posenet.inference.media.frame_prediction import FramePrediction
from posenet.inference.media.outputs import Output
from posenet.inference.media.people_files import JsonLinesWriter, open_coco_file, open_csv_file, open_people_file
from posenet.inference.media.progress_file import Progress, ProgressFile, UnreadableSource, open_progress_file
from posenet.inference.media.sources import Frame, Source, UnreadableFrame
from posenet.inference.person import Person
from posenet.inference.shared_work import UnitItem
from posenet.messages import pluralize
from posenet.settings import Config

MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


def people_files(args: argparse.Namespace) -> list[str]:
    """The files of people that the flags name."""
    return [path for path in (args.json, args.coco, args.csv) if path]


def resumable_file(args: argparse.Namespace) -> Path | None:
    """The file of people that --resume can continue; None if there is none."""
    if not args.json or is_standard_output(args.json) or Path(args.json).suffix.lower() != ".jsonl":
        return None
    path = resolve_link(Path(args.json))
    return None if path.exists() and not path.is_file() else path


class PeopleFiles:
    """Writes the people of each frame to the files of the flags, and records progress, on the rank that receives them.

    ``open_progress`` comes first, then ``open``, then the items in order. Files that replace an earlier one do so when
    the context ends without an error.

    Attributes:
        summary: counts what was written.
        num_units: number of complete units that this run has written.
    """

    def __init__(self, args: argparse.Namespace, sources: Sequence[Source], config: Config) -> None:
        self.summary = PredictionSummary(sources)
        self.num_units = 0
        self._args = args
        self._sources = sources
        self._config = config
        self._stack = contextlib.ExitStack()
        self._outputs: list[tuple[str, Output]] = []
        self._json_lines: JsonLinesWriter | None = None
        self._progress_file: ProgressFile | None = None
        self._start = Progress(0, 0)
        self._unreadable: list[UnreadableSource] = []
        """Those of the current unit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        with name_file_in_errors(", ".join(people_files(self._args))):
            self._stack.__exit__(*error)

    def open_progress(self, run: Mapping[str, Any]) -> Progress:
        """Open the progress file of a ``.jsonl`` file, and return what an earlier run has done.

        Args:
            run: see ``open_progress_file``.
        """
        path = resumable_file(self._args)
        if path is not None:
            opened = open_progress_file(path, run, resume=self._args.resume)
            self._progress_file = self._stack.enter_context(opened)
            self._start = self._progress_file.progress
            self.summary.restore(self._start.unreadable)
        return self._start

    def open(self) -> None:
        """Open the files of people."""
        if self._args.json:
            opened = open_people_file(Path(self._args.json), self._sources, append=self._start.units > 0)
            output = self._stack.enter_context(opened)
            self._outputs.append((self._args.json, output))
            if isinstance(output, JsonLinesWriter):
                self._json_lines = output
        skeleton = self._config.model.skeleton
        if self._args.coco:
            exif_frame = select_exif_frame(self._args, self._config)
            coco_file = open_coco_file(Path(self._args.coco), self._sources, skeleton, exif_frame)
            self._outputs.append((self._args.coco, self._stack.enter_context(coco_file)))
        if self._args.csv:
            csv_file = open_csv_file(Path(self._args.csv), skeleton)
            self._outputs.append((self._args.csv, self._stack.enter_context(csv_file)))

    def write(self, item: UnitItem[FramePrediction]) -> None:
        """Write the people of a frame; or, at the end of a unit, record that it is complete."""
        prediction = item.item
        if prediction is None:
            self.num_units += 1
            self._record_unit()
            return
        frame = prediction.frame
        is_new = self.summary.add(frame, prediction.people)
        if isinstance(frame, Frame):
            for path, output in self._outputs:
                with name_file_in_errors(path):
                    output.write(frame, prediction.people, frame.image)
        elif is_new:
            self._unreadable.append(UnreadableSource(prediction.source_index, str(frame.error)))

    def _record_unit(self) -> None:
        if self._progress_file is not None:
            size = None if self._json_lines is None else self._json_lines.size
            self._progress_file.record(self._start.units + self.num_units, size, self._unreadable)
        self._unreadable = []

    def complete(self) -> None:
        """Finish a ``.jsonl`` file. All units are written.

        If there are no inputs, make an empty file. Keep the progress file only for another run with --resume.
        """
        if self._progress_file is None:
            return
        path = Path(self._args.json)
        if not path.exists() and not self.summary.unreadable:
            path.touch()
        if not self._args.resume:
            self._progress_file.remove()


class PredictionSummary:
    """Counts people, images and video frames, and remembers the sources that could not be read completely."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.num_people = 0
        self.num_images = 0
        self.num_video_frames = 0
        self.has_live_frames = False
        self.unreadable: dict[Source, DataError] = {}  # the first error of every source
        self._sources = sources

    def restore(self, unreadable: Sequence[UnreadableSource]) -> None:
        """Add the sources that an earlier run could not read."""
        for index, error in unreadable:
            self.unreadable[self._sources[index]] = DataError(error)

    def add(self, frame: Frame | UnreadableFrame, people: Sequence[Person]) -> bool:
        """Count a frame; log the first error of each source. Return whether this was the first error."""
        if isinstance(frame, UnreadableFrame):
            is_first = frame.source not in self.unreadable
            if is_first:
                self.unreadable[frame.source] = frame.error
                _log.warning("%s", frame.error)
            return is_first
        self.num_people += len(people)
        if frame.number is None:
            self.num_images += 1
        else:
            self.num_video_frames += 1
            self.has_live_frames = self.has_live_frames or frame.is_live
        return False

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
        return f"{pluralize(self.num_people, 'person', 'people')} in {' and '.join(counts)}"

    def raise_if_unreadable(self) -> None:
        """Raise a ``DataError`` that names the unreadable sources."""
        if not self.unreadable:
            return
        only_images = all(source.kind == "image" for source in self._sources)
        inputs = pluralize(len(self._sources), "image" if only_images else "input")
        problem = "could not be read" if only_images else "could not be read completely"
        names = [source.name for source in self.unreadable]
        shown = ", ".join(names[:MAX_NAMED_FAILURES]) + (" ..." if len(names) > MAX_NAMED_FAILURES else "")
        raise DataError(f"{len(names)} of {inputs} {problem}: {shown}")
