"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from posenet.cli.options import (
    SWITCH,
    add_exif_frame_option,
    fraction,
    message_stream,
    non_negative_int,
    positive_int,
    seconds,
    select_exif_frame,
)
from posenet.cli.predictor_options import add_predictor_options, check_outputs, make_predictor
from posenet.cli.tracking_options import add_tracking_options, make_frame_tracker
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError, DataError
from posenet.inference.media.frame_prediction import predict_frames
from posenet.inference.media.outputs import DrawingWriter, Output, drawing_suffix, output_paths
from posenet.inference.media.people_files import open_coco_file, open_csv_file, open_people_file
from posenet.inference.media.sources import FileSource, Frame, Source, UnreadableFrame, count_frames, find_sources
from posenet.inference.media.video import FrameSelection
from posenet.inference.media.video_library import WITHOUT_PYAV, has_pyav
from posenet.inference.media.window import Window
from posenet.inference.person import Person
from posenet.messages import pluralize
from posenet.progress import progress_bar
from posenet.visualization.heatmaps import HeatmapSheetWriter, heatmap_sheet_suffix
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE, draw_people
from posenet.visualization.trails import Trails

MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``predict``."""
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="images, videos, folders, quoted glob patterns, numbered images (frame_%%04d.png), addresses (http, "
        "https, rtsp) or cameras (0, /dev/video0); - reads a list of files from standard input",
    )
    add(
        "--camera",
        type=non_negative_int,
        action="append",
        default=[],
        metavar="N",
        help="number of a camera; the same as N among the inputs",
    )
    add(
        "--recursive",
        **SWITCH,
        help="also search the subfolders of folders, and write drawings into subfolders of the same names",
    )
    add("--start", type=seconds, default=0.0, metavar="SECONDS", help="skip the beginning of every video")
    add(
        "--duration",
        type=seconds,
        default=math.inf,
        metavar="SECONDS",
        help="read only this long from every video (default: all)",
    )
    add("--stride", type=positive_int, default=1, metavar="N", help="read only every N-th frame of videos")
    add("--output", metavar="DIR", help="folder for drawings of images and videos; replaces those of an earlier run")
    add(
        "--json",
        metavar="FILE",
        help="write all people to this file, as COCO results with file names, and in videos with frame numbers and "
        "times; a .jsonl file gets one person per line while the tool runs; - is standard output",
    )
    add(
        "--coco",
        metavar="FILE",
        help="write a COCO data set: all images, with the people as annotations; file names are relative to the folder "
        "that holds all inputs",
    )
    add_exif_frame_option(
        parser,
        "frame of the sizes and keypoints that --coco writes for images with an EXIF orientation: displayed, as "
        "viewers turn the image, or stored",
    )
    add("--csv", metavar="FILE", help="write a table with one person per row")
    add("--heatmaps", metavar="DIR", help="folder for all maps of the network, one labelled sheet per image or frame")
    add("--show", **SWITCH, help="show the drawings in a window; Q ends, any other key continues with the next image")
    add("--min-score", type=fraction, default=MIN_SCORE, metavar="X", help="leave out people with a lower score, 0-1")
    add(
        "--keypoint-min-score",
        type=fraction,
        default=KEYPOINT_MIN_SCORE,
        metavar="X",
        help="do not draw keypoints with a lower score, 0-1; the JSON file contains them all",
    )
    add(
        "--line-width",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="width of the limbs in pixels; 0 depends on the sizes of the person and of the image (default: 0)",
    )
    add(
        "--colours",
        "--colors",
        choices=["side", "person"],
        help="side: left blue, right orange; person: one colour for each person (default: side; with --track person)",
    )
    add(
        "--codec",
        metavar="FOURCC",
        help="codec of the drawn videos, as four letters such as avc1 or mp4v (default: H.264 with PyAV, else MPEG-4)",
    )
    add_tracking_options(parser)
    add_predictor_options(parser)


def run(args: argparse.Namespace) -> None:
    """Predict all frames that can be read.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    with contextlib.ExitStack() as stack:
        sources = _find_sources(args)
        selection = FrameSelection(args.start, args.duration, args.stride)
        drawing_paths, sheet_paths = _choose_output_paths(args, sources)
        if args.show:
            Window.require_display()
        tracker = make_frame_tracker(args)
        predictor = make_predictor(args)
        summary = PredictionSummary(sources)
        stop_requested = stack.enter_context(catch_stop_signals())
        outputs: list[Output] = []
        if args.json:
            outputs.append(stack.enter_context(open_people_file(Path(args.json), sources)))
        if args.coco:
            coco_file = open_coco_file(Path(args.coco), sources, predictor.skeleton, select_exif_frame(args))
            outputs.append(stack.enter_context(coco_file))
        if args.csv:
            outputs.append(stack.enter_context(open_csv_file(Path(args.csv), predictor.skeleton)))
        if args.output:
            outputs.append(stack.enter_context(DrawingWriter(drawing_paths, args.codec)))
        if args.heatmaps:
            outputs.append(HeatmapSheetWriter(predictor, sheet_paths))
        window = stack.enter_context(contextlib.closing(Window(stop_requested))) if args.show else None
        if window:
            outputs.append(window)
        trails = Trails() if args.trails else None
        total = None if args.quiet else count_frames(sources, selection)
        bar = stack.enter_context(progress_bar(title="predict", total=total))
        predictions = predict_frames(predictor, sources, selection, stop_requested)
        for frame, people in stack.enter_context(contextlib.closing(predictions)):
            people = [person for person in people if person.score >= args.min_score]
            if tracker and isinstance(frame, Frame):
                people = tracker.update(frame, people)
            summary.add(frame, people)
            if isinstance(frame, Frame):
                _write_frame(args, frame, people, outputs, trails)
            bar.update()
            if stop_requested() or (window and window.closed):
                break
        if not (summary.num_images or summary.num_video_frames or stop_requested()):
            summary.raise_if_unreadable()  # before the files of people replace earlier ones
        # Ctrl-C is the ordinary way to end a camera or a live stream.
        interrupted = stop_requested() and not summary.has_live_frames
    if not args.quiet:
        messages = message_stream(*_people_files(args))
        print(summary, file=messages)
        written = [path for path in (args.output, *_people_files(args), args.heatmaps) if path and path != "-"]
        if written and summary.num_images + summary.num_video_frames > 0:
            print("wrote " + ", ".join(written), file=messages)
    if interrupted:
        raise KeyboardInterrupt
    summary.raise_if_unreadable()


def _people_files(args: argparse.Namespace) -> list[str]:
    return [path for path in (args.json, args.coco, args.csv) if path]


def _find_sources(args: argparse.Namespace) -> list[Source]:
    if not (args.output or _people_files(args) or args.heatmaps or args.show):
        raise ConfigError(
            "nothing to write: give --output DIR, --json FILE, --coco FILE, --csv FILE, --heatmaps DIR or --show"
        )
    listed = read_file_list(sys.stdin.buffer) if "-" in args.inputs else []
    sources = find_sources(args.inputs, listed, args.camera, recursive=args.recursive)
    if not sources:
        raise DataError("no input: name images, videos, folders or a camera, or pass a list of files on standard input")
    if not has_pyav() and any(source.kind == "video" for source in sources):
        _log.info(WITHOUT_PYAV)
    return sources


def read_file_list(file: BinaryIO) -> list[str]:
    """Read a list of files with one per line, or with a NUL after each, as ``find -print0`` writes it."""
    data = file.read()
    entries = data.split(b"\0") if b"\0" in data else [line.strip() for line in data.splitlines()]
    return [os.fsdecode(entry) for entry in entries if entry]


def _choose_output_paths(
    args: argparse.Namespace, sources: Sequence[Source]
) -> tuple[dict[Source, Path], dict[Source, Path]]:
    """Choose paths for drawings and heatmap sheets, and check that no output replaces an input or another output."""
    if args.output and args.heatmaps and Path(args.output).resolve() == Path(args.heatmaps).resolve():
        raise ConfigError("--heatmaps and --output give their files the same names; choose two folders")
    drawings = output_paths(sources, Path(args.output), drawing_suffix) if args.output else {}
    sheets = output_paths(sources, Path(args.heatmaps), heatmap_sheet_suffix) if args.heatmaps else {}
    files = [*drawings.values(), *(path for source, path in sheets.items() if source.kind == "image")]
    files += map(Path, _people_files(args))
    originals = [source.path for source in sources if isinstance(source, FileSource)]
    check_outputs(files, [*originals, Path(args.checkpoint)])
    return drawings, sheets


def _write_frame(
    args: argparse.Namespace, frame: Frame, people: Sequence[Person], outputs: Sequence[Output], trails: Trails | None
) -> None:
    """Draw the people if any output needs the drawing, and write the frame to all outputs."""
    drawing = frame.image
    if args.output or args.heatmaps or args.show:
        is_tracked = any(person.id is not None for person in people)
        drawing = draw_people(
            frame.image,
            people,
            keypoint_min_score=args.keypoint_min_score,
            line_width=args.line_width,
            colours=args.colours or ("person" if is_tracked else "side"),
        )
        if trails:
            trails.draw(drawing, frame, people)
    for output in outputs:
        output.write(frame, people, drawing)


class PredictionSummary:
    """Counts people, images and video frames, and remembers the sources that could not be read completely."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.num_people = 0
        self.num_images = 0
        self.num_video_frames = 0
        self.has_live_frames = False
        self.unreadable: dict[Source, DataError] = {}  # the first error of every source
        self._sources = sources

    def add(self, frame: Frame | UnreadableFrame, people: Sequence[Person]) -> None:
        """Count a frame; log the first error of each source."""
        if isinstance(frame, UnreadableFrame):
            if frame.source not in self.unreadable:
                self.unreadable[frame.source] = frame.error
                _log.warning("%s", frame.error)
            return
        self.num_people += len(people)
        if frame.number is None:
            self.num_images += 1
        else:
            self.num_video_frames += 1
            self.has_live_frames = self.has_live_frames or frame.is_live

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
