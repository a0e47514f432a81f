"""What ``predict`` writes, as its flags ask for it, and what it reports at its end."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.cli.options import input_files
from posenet.errors import ConfigError, DataError
from posenet.files import check_outputs, is_standard_output, resolve_link
from posenet.images import IMAGE_SUFFIXES, write_image
from posenet.inference.media.journal import find_journals, require_journal, side_files, unrecorded_outputs
from posenet.inference.media.outputs import Show, Write, drawing_suffixes, output_paths, show_in_window, write_drawings
from posenet.inference.media.people_files import write_coco, write_csv, write_json, write_json_lines
from posenet.inference.media.sources import VIDEO_SUFFIXES, Frame, Source, files_of_source
from posenet.person import Person
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, ColourScheme, Trails, draw_people
from posenet.visualization.sheets import draw_heatmap_sheet

MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


class ImagePaths(NamedTuple):
    """Where the drawings and the sheets of maps of each source go; see ``output_paths``."""

    drawings: dict[Source, list[Path]]
    sheets: dict[Source, list[Path]]


def people_files(args: argparse.Namespace) -> list[str]:
    """The files of people that the flags name."""
    return [path for path in (args.json, args.coco, args.csv) if path]


def choose_outputs(args: argparse.Namespace, sources: Sequence[Source]) -> ImagePaths:
    """Choose the names of drawings and sheets; ``ConfigError`` if the flags ask for no output or contradict."""
    if not (args.output or people_files(args) or args.heatmaps or args.show):
        raise ConfigError(
            "nothing to write: give --output DIR, --json FILE, --coco FILE, --csv FILE, --heatmaps DIR or --show"
        )
    if args.json and args.json != "-" and Path(args.json).suffix.lower() not in ("", ".json", ".jsonl"):
        raise ConfigError(f"--json {args.json} writes JSON; end the name with .json, or .jsonl for one person per line")
    for flag, folder in (("--output", args.output), ("--heatmaps", args.heatmaps)):
        suffix = Path(folder or "").suffix
        if suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES and not Path(folder).exists():
            raise ConfigError(f"{flag} {folder} would be a folder for files named like the inputs; leave out {suffix}")
    if args.output and args.heatmaps and os.path.realpath(args.output) == os.path.realpath(args.heatmaps):
        raise ConfigError("--heatmaps and --output give their files the same names; choose two folders")
    drawings = output_paths(sources, Path(args.output), drawing_suffixes) if args.output else {}
    sheets = output_paths(sources, Path(args.heatmaps), sheet_suffixes) if args.heatmaps else {}
    return ImagePaths(drawings, sheets)


def check_paths(args: argparse.Namespace, sources: Sequence[Source], paths: ImagePaths, world_size: int) -> None:
    """Check all files that will be written (see ``check_outputs``); ``DataError`` if one of them cannot be."""
    people = people_files(args)
    journaled = journaled_file(args)
    has_journals = journaled is not None and (args.resume or world_size > 1 or is_lines_file(journaled))
    beside = side_files(journaled, world_size) if journaled is not None and has_journals else {}
    new = people
    is_continued = False
    if args.resume and journaled is not None and not args.overwrite:
        require_journal(journaled)
        is_continued = bool(find_journals(journaled))
        new = unrecorded_outputs(journaled, people)
    drawings = [*chain(*paths.drawings.values())]
    folders: list[Path] = []
    for source, paths_of_source in paths.sheets.items():
        for path, suffix in zip(paths_of_source, sheet_suffixes(source)):
            (drawings if suffix else folders).append(path)
    check_outputs(
        [*people, *drawings],
        chain(input_files(args), *map(files_of_source, sources)),
        # The shards of a job that can be resumed write their drawings into the same folder.
        overwrite=args.overwrite or is_continued or (args.resume and args.shard is not None),
        folders=folders,
        side_files=beside,
    )
    check_outputs(new, overwrite=args.overwrite)


def journaled_file(args: argparse.Namespace) -> Path | None:
    """The first file of people, which can have journals; None if all are devices or standard output."""
    files = [resolve_link(Path(path)) for path in people_files(args) if not is_standard_output(path)]
    return next((path for path in files if path.is_file() or not path.exists()), None)


def open_people_files(
    args: argparse.Namespace, sources: Sequence[Source], predictor: Predictor, stack: ExitStack
) -> list[Write]:
    """Open the files of people, which ``stack`` completes."""
    outputs = []
    if args.json:
        write_people = write_json_lines if is_lines_file(args.json) else write_json
        outputs.append(write_people(Path(args.json), sources))
    if args.coco:
        outputs.append(write_coco(Path(args.coco), sources, predictor.skeleton, predictor.exif_frame))
    if args.csv:
        outputs.append(write_csv(Path(args.csv), predictor.skeleton))
    return list(map(stack.enter_context, outputs))


def is_lines_file(path: str | Path) -> bool:
    """Whether a file of people has one person per line."""
    return Path(path).suffix.lower() == ".jsonl"


def open_drawing_outputs(
    args: argparse.Namespace,
    paths: ImagePaths,
    predictor: Predictor,
    stack: ExitStack,
    stop_requested: Callable[[], bool],
    on_close: Callable[[], None],
) -> list[Show]:
    """Open the outputs that show people in their images, which ``stack`` completes; see ``show_in_window``."""
    outputs = []
    if args.output:
        outputs.append(stack.enter_context(write_drawings(paths.drawings)))
    if args.heatmaps:
        outputs.append(sheet_writer(paths.sheets, predictor))
    if args.show:
        outputs.append(stack.enter_context(show_in_window(stop_requested, on_close)))
    return outputs


def draw_frame(frame: Frame, people: Sequence[Person], trails: Trails | None) -> np.ndarray:
    """The drawing of a frame, (H, W, 3) uint8 BGR; tracked people have a colour each."""
    is_tracked = any(person.id is not None for person in people)
    colours: ColourScheme = "person" if is_tracked else "side"
    drawing = draw_people(frame.image, people, keypoint_min_score=KEYPOINT_MIN_SCORE, colours=colours)
    if trails:
        trails.draw(drawing, frame, people)
    return drawing


def sheet_writer(paths: Mapping[Source, Sequence[Path]], predictor: Predictor) -> Show:
    """Writes one sheet with all maps for every image or frame, to ``output_paths`` with ``sheet_suffixes``.

    The sheet of an image is a file. A video or a camera has a folder, with sheets named by frame number.
    """

    def write(frame: Frame, drawing: np.ndarray) -> None:
        paths_of_source = paths[frame.source]
        path = paths_of_source[0] if frame.number is None else paths_of_source[-1] / f"{frame.number:06d}.jpg"
        maps = predictor.compute_maps(frame.image)
        write_image(path, draw_heatmap_sheet(frame.image, maps, predictor.skeleton, drawing))

    return write


def sheet_suffixes(source: Source) -> list[str]:
    """Suffixes of what ``sheet_writer`` makes for a source; that of a folder is empty."""
    return {"image": [".jpg"], "animation": [".jpg", ""]}.get(source.kind, [""])


@dataclass
class PredictionSummary:
    """What has been found in some sources, and which of them could not be read completely."""

    sources: Sequence[Source]
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of images, video frames, live frames, and detections: people without an id."""
    tracks: set[tuple[Source, int]] = field(default_factory=set)
    """The people with an id."""
    unreadable: dict[Source, DataError] = field(default_factory=dict)
    """The first error of every source."""
    is_interrupted: bool = False
    is_closed: bool = False
    """Whether the user has closed the window of ``--show`` before the end."""

    def add(self, frame: Frame, people: Sequence[Person]) -> None:
        """Count a frame; log the first error of each source."""
        if frame.error:
            if frame.source not in self.unreadable:
                self.unreadable[frame.source] = frame.error
                _log.warning("%s", frame.error)
            return
        self.tracks.update((frame.source, person.id) for person in people if person.id is not None)
        self.counts["detections"] += sum(person.id is None for person in people)
        self.counts["images" if frame.number is None else "video frames"] += 1
        self.counts["live frames"] += frame.is_live

    def merge(self, others: Iterable[PredictionSummary]) -> PredictionSummary:
        """The sum of the summaries of all processes."""
        total = PredictionSummary(self.sources)
        for other in others:
            total.counts.update(other.counts)
            total.tracks |= other.tracks
            total.unreadable |= other.unreadable
            total.is_interrupted |= other.is_interrupted
            total.is_closed |= other.is_closed
        return total

    @property
    def has_frames(self) -> bool:
        """Whether any frame could be read."""
        return self.counts["images"] + self.counts["video frames"] > 0

    def __str__(self) -> str:
        images, frames, detections = (self.counts[name] for name in ("images", "video frames", "detections"))
        counts = []
        if images or not frames:
            counts.append(pluralize(images, "image"))
        if frames:
            counts.append(pluralize(frames, "video frame"))
        if self.tracks:
            people = pluralize(len(self.tracks), "tracked person", "tracked people")
            people += f" and {pluralize(detections, 'detection')}" if detections else ""
        elif frames:
            people = pluralize(detections, "detection")
        else:
            people = pluralize(detections, "person", "people")
        return f"{people} in {' and '.join(counts)}"

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
