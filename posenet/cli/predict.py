"""Find people in images, videos and before cameras: draw them, and write their keypoints as JSON."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posenet.cli.options import natural, share
from posenet.cli.predictor_options import add_predictor_options, check_outputs, make_predictor
from posenet.devices.signals import stop_signals
from posenet.errors import ConfigError, DataError
from posenet.inference.media.outputs import Output, Window, drawings, output_paths, people_file
from posenet.inference.media.sources import Frame, Source, count_frames, find_sources, read_frames
from posenet.inference.media.video import CODEC
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.visualization.heatmaps import heatmap_sheets
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE, draw_people

BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``predict``."""
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="images, videos, folders, quoted glob patterns, the number of a camera; - reads a list of files from "
        "standard input",
    )
    add(
        "--camera",
        type=natural,
        action="append",
        default=[],
        metavar="N",
        help="a camera, by its number; the same as N among the inputs",
    )
    add("--output", metavar="DIR", help="folder for the drawn images and videos; those of an earlier run are replaced")
    add(
        "--json",
        metavar="FILE",
        help="write all people here, as COCO results with file names, in videos with frame numbers and times; a name "
        "that ends in .jsonl gets one person per line, as they are found",
    )
    add("--heatmaps", metavar="DIR", help="folder for all maps of the network, one labelled sheet per image or frame")
    add(
        "--show",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="show the drawings in a window; Q ends, any other key goes on to the next image",
    )
    add("--min-score", type=share, default=MIN_SCORE, metavar="X", help="leave out people who score less, 0-1")
    add(
        "--keypoint-min-score",
        type=share,
        default=KEYPOINT_MIN_SCORE,
        metavar="X",
        help="do not draw keypoints that score less, 0-1; the JSON holds them all",
    )
    add(
        "--line-width",
        type=natural,
        default=0,
        metavar="N",
        help="pixels; 0 suits the sizes of the person and of the image (default: 0)",
    )
    add(
        "--colours",
        "--colors",
        choices=["side", "person"],
        default="side",
        help="side: left blue, right orange; person: a colour for each person",
    )
    add(
        "--codec",
        default=CODEC,
        metavar="FOURCC",
        help="codec of drawn videos, for example avc1 (H.264) where this OpenCV has it",
    )
    add_predictor_options(parser)


def run(args: argparse.Namespace) -> None:
    """Predict all that can be read; what cannot be makes the exit status 2 in the end."""
    sources = _sources(args)
    drawn_paths, sheet_paths = _paths(args, sources)
    if args.show:
        Window.require_display()
    predictor = make_predictor(args)
    tally = _Tally(sources)
    with contextlib.ExitStack() as stack:
        stop_asked = stack.enter_context(stop_signals())
        outputs: list[Output] = []
        if args.json:
            outputs.append(stack.enter_context(people_file(Path(args.json))))
        if args.output:
            outputs.append(stack.enter_context(drawings(drawn_paths, args.codec)))
        if args.heatmaps:
            outputs.append(heatmap_sheets(predictor, sheet_paths))
        window = stack.enter_context(contextlib.closing(Window(stop_asked))) if args.show else None
        outputs += [window] if window else []
        for frame, people in stack.enter_context(contextlib.closing(_predict(predictor, sources))):
            _write(args, frame, people, outputs, tally)
            if stop_asked() or (window and window.closed):
                break
        interrupted = stop_asked() and not any(source.kind == "camera" for source in sources)
    print(tally)
    written = [where for where in (args.output, args.json, args.heatmaps) if where]
    if written and tally.pictures + tally.frames:
        print("wrote " + ", ".join(written))
    if interrupted:
        raise KeyboardInterrupt
    tally.raise_failures()


def _sources(args: argparse.Namespace) -> list[Source]:
    if not (args.output or args.json or args.heatmaps or args.show):
        raise ConfigError("nothing to write: give --output DIR, --json FILE, --heatmaps DIR or --show")
    if sources := find_sources(args.inputs, sys.stdin if "-" in args.inputs else (), args.camera):
        return sources
    raise DataError("no input: name images, videos, folders or a camera, or give a list of files on standard input")


def _paths(args: argparse.Namespace, sources: list[Source]) -> tuple[dict[Source, Path], dict[Source, Path]]:
    """Where the drawings and the sheets of maps go, none of them in the place of an input."""
    if args.output and args.heatmaps and Path(args.output).resolve() == Path(args.heatmaps).resolve():
        raise ConfigError("--heatmaps and --output give their files the same names; choose two folders")
    drawn = output_paths(sources, Path(args.output)) if args.output else {}
    sheets = output_paths(sources, Path(args.heatmaps), ".jpg", "") if args.heatmaps else {}
    files = [*drawn.values(), *(path for source, path in sheets.items() if source.kind == "image")]
    check_outputs(
        files + ([Path(args.json)] if args.json else []),
        [*(source.path for source in sources if source.path), Path(args.checkpoint)],
    )
    return drawn, sheets


def _predict(predictor: Predictor, sources: Sequence[Source]) -> Iterator[tuple[Frame, list[Person]]]:
    """Every frame with its people, in order; nobody in one that cannot be read."""
    bar = tqdm(total=count_frames(sources), desc="predict", unit=" images", bar_format=BAR)
    with logging_redirect_tqdm(), bar, contextlib.closing(read_frames(sources)) as frames:
        for live, group in itertools.groupby(frames, lambda frame: frame.source.kind == "camera"):
            for frame, people in _at_once(predictor, group) if live else _streamed(predictor, group):
                yield frame, people
                bar.update()


def _at_once(predictor: Predictor, frames: Iterable[Frame]) -> Iterator[tuple[Frame, list[Person]]]:
    """Of a camera's frames, which show the present, none waits for the next."""
    for frame in frames:
        yield frame, [] if isinstance(frame.image, DataError) else predictor(frame.image)


def _streamed(predictor: Predictor, frames: Iterable[Frame]) -> Iterator[tuple[Frame, list[Person]]]:
    """Reading, preparing and decoding go on while the network runs; a few frames are held meanwhile."""
    waiting: deque[Frame] = deque()

    def pictures() -> Iterator[np.ndarray]:
        for frame in frames:
            waiting.append(frame)
            if not isinstance(frame.image, DataError):
                yield frame.image

    with contextlib.closing(predictor.stream(pictures())) as found:
        for people in found:
            while isinstance(waiting[0].image, DataError):
                yield waiting.popleft(), []
            yield waiting.popleft(), people
    for frame in waiting:
        yield frame, []


def _write(
    args: argparse.Namespace, frame: Frame, people: list[Person], outputs: Sequence[Output], tally: _Tally
) -> None:
    people = [person for person in people if person.score >= args.min_score]
    tally.add(frame, people)
    if isinstance(frame.image, DataError):
        return
    drawn = frame.image
    if args.output or args.heatmaps or args.show:
        drawn = draw_people(
            frame.image,
            people,
            keypoint_min_score=args.keypoint_min_score,
            line_width=args.line_width,
            colours=args.colours,
        )
    for output in outputs:
        output(frame, people, drawn)


class _Tally:
    """Counts what was found and remembers what could not be read."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources, self.people, self.pictures, self.frames = sources, 0, 0, 0
        self.failed: dict[Source, int] = {}

    def add(self, frame: Frame, people: Sequence[Person]) -> None:
        if isinstance(frame.image, DataError):
            if frame.source not in self.failed:
                _log.warning("%s", frame.image)
            self.failed[frame.source] = self.failed.get(frame.source, 0) + 1
            return
        self.people += len(people)
        self.pictures += frame.number is None
        self.frames += frame.number is not None

    def __str__(self) -> str:
        places = [pluralize(self.pictures, "image")] if self.pictures or not self.frames else []
        places += [pluralize(self.frames, "video frame")] if self.frames else []
        return f"{pluralize(self.people, 'person', 'people')} in {' and '.join(places)}"

    def raise_failures(self) -> None:
        """Raise a ``DataError`` that names the sources of which anything could not be read."""
        if not self.failed:
            return
        kinds = {source.kind for source in self.sources}
        all_of = pluralize(len(self.sources), "image" if kinds == {"image"} else "input")
        how = "could not be read" + (" in full" if kinds - {"image"} else "")
        names = [source.name for source in self.failed]
        raise DataError(f"{len(names)} of {all_of} {how}: {', '.join(names[:5])}" + " ..." * (len(names) > 5))
