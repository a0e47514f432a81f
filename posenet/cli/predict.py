"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import nn

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
from posenet.cli.ranks import (
    add_rank_options,
    form_team,
    open_runtime,
    run_on_all,
    run_on_main,
    run_on_ranks,
    use_device_of_rank,
)
from posenet.cli.tracking_options import add_tracking_options, make_frame_tracker
from posenet.devices.rank_info import RankInfo
from posenet.devices.runtime import Runtime
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError, DataError
from posenet.files import is_standard_output, resolve_link
from posenet.inference.media.frame_prediction import FramePrediction, predict_units, prediction_format
from posenet.inference.media.frame_tracking import FrameTracker
from posenet.inference.media.outputs import DrawingWriter, Output, drawing_suffix, output_paths
from posenet.inference.media.people_files import JsonLinesWriter, open_coco_file, open_csv_file, open_people_file
from posenet.inference.media.progress_file import ProgressFile
from posenet.inference.media.sources import (
    CameraSource,
    FileSource,
    Frame,
    Source,
    UnreadableFrame,
    UrlSource,
    count_frames,
    find_sources,
)
from posenet.inference.media.units import WHOLE, Shard, split_into_units
from posenet.inference.media.video import FrameSelection
from posenet.inference.media.video_library import WITHOUT_PYAV, has_pyav
from posenet.inference.media.window import Window
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shared_work import Team, UnitItem, share_units
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
    add(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="read a list of inputs from this file, with one path or address per line or with a NUL after each; - is "
        "standard input (default: none)",
    )
    add(
        "--shard",
        metavar="I/N",
        help="predict only part I of N equal parts of the inputs, where I counts from 0, for example "
        "$SLURM_ARRAY_TASK_ID/100 (default: all)",
    )
    add(
        "--resume",
        **SWITCH,
        help="continue the .jsonl file of --json after an interruption; start it if there is none, do nothing if it is "
        "complete",
    )
    parser.set_defaults(standard_input=None)
    add_rank_options(parser)
    add_tracking_options(parser)
    add_predictor_options(parser)


def run(args: argparse.Namespace) -> None:
    """Predict all frames that can be read, in one process or several.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    if args.nproc and "-" in [*args.inputs, *args.list]:
        # The processes that this one starts have no standard input.
        args.standard_input = read_file_list(sys.stdin.buffer)
    run_on_ranks(args, _predict)


def _predict(args: argparse.Namespace, rank_info: RankInfo) -> None:
    """Predict as one of the processes. Rank 0 writes the files of people and reports."""
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(open_runtime(args, rank_info))
        shard = run_on_main(runtime, lambda: _check_flags(args))
        sources = run_on_main(runtime, lambda: _find_sources(args, runtime.world_size))
        drawing_paths, sheet_paths = run_on_all(runtime, lambda: _choose_output_paths(args, sources))
        if args.show:
            Window.require_display()
        tracker = make_frame_tracker(args)
        predictor = run_on_all(runtime, lambda: _make_predictor(args, rank_info))
        units = split_into_units(sources, predictor.settings.batch_size)
        numbers = shard.select(len(units))
        progress_file: ProgressFile | None = None

        def open_progress_file() -> int:
            """Open the progress file on rank 0; return the number of units that are done."""
            nonlocal progress_file
            if _continuable_file(args) is None:
                return 0
            progress_file = _open_progress_file(args, shard, sources, predictor)
            stack.callback(progress_file.close)
            return progress_file.progress.units

        num_done = run_on_main(runtime, open_progress_file)
        if num_done:
            done, wanted = (sum(len(units[number]) for number in some) for some in (numbers[:num_done], numbers))
            _log.info("%d of %s are done already", done, pluralize(wanted, "input"))
        numbers = numbers[num_done:]
        team = stack.enter_context(_form_team(args, runtime))
        summary = PredictionSummary(sources)
        stop_requested = stack.enter_context(catch_stop_signals())
        selection = FrameSelection(args.start, args.duration, args.stride)
        outputs: list[Output] = []
        if runtime.is_main:
            outputs = stack.enter_context(_open_people_files(args, sources, predictor, append=num_done > 0))
        drawer = stack.enter_context(FrameDrawer(args, predictor, drawing_paths, sheet_paths, stop_requested))
        total = None
        if runtime.is_main and not args.quiet:
            total = count_frames((sources[index] for number in numbers for index in units[number]), selection)
        bar = stack.enter_context(progress_bar(title="predict", total=total))

        def predict(numbers: Sequence[int]) -> Generator[UnitItem[FramePrediction], None, None]:
            items = predict_units(predictor, sources, units, numbers, selection, stop_requested)
            with contextlib.closing(items):
                for number, prediction in items:
                    if prediction is None:
                        drawer.finish_source()
                    else:
                        prediction = _choose_people(prediction, args.min_score, tracker)
                        drawer.write(prediction)
                    yield UnitItem(number, prediction)
                    if stop_requested() or drawer.is_closed:
                        return

        item_format = prediction_format(sources, predictor.skeleton)
        items = share_units(numbers, predict, team, item_format, stop_requested)
        num_units = 0
        for _, prediction in stack.enter_context(contextlib.closing(items)):
            if prediction is not None:
                summary.add(prediction.frame, prediction.people)
                _write_people(prediction, outputs)
                bar.update()
                continue
            num_units += 1
            if progress_file is not None:
                progress_file.record(num_done + num_units, _size_of_lines(outputs))
        interrupted = stop_requested()
        if runtime.is_main:
            is_complete = num_units == len(numbers)
            # Another rank may have received the signal to stop.
            interrupted = interrupted or (not is_complete and not drawer.is_closed)
            if not interrupted and not summary.has_frames:
                summary.raise_if_unreadable()  # before the files of people replace earlier ones
            if is_complete and progress_file is not None:
                _complete_people_file(args, progress_file)
    # Ctrl-C is the ordinary way to end a camera or a live stream.
    interrupted = interrupted and not summary.has_live_frames
    if runtime.is_main:
        _report(args, summary)
    if interrupted:
        raise KeyboardInterrupt
    summary.raise_if_unreadable()


def _check_flags(args: argparse.Namespace) -> Shard:
    """Check flags that depend on each other; return the shard to predict."""
    if not (args.output or _people_files(args) or args.heatmaps or args.show):
        raise ConfigError(
            "nothing to write: give --output DIR, --json FILE, --coco FILE, --csv FILE, --heatmaps DIR or --show"
        )
    if args.resume and (_continuable_file(args) is None or args.coco or args.csv):
        raise ConfigError("--resume continues a .jsonl file: give --json FILE.jsonl, and neither --coco nor --csv")
    return Shard.parse(args.shard) if args.shard else WHOLE


def _continuable_file(args: argparse.Namespace) -> Path | None:
    """The file of people that --resume can continue; None if there is none."""
    if not args.json or is_standard_output(args.json) or Path(args.json).suffix.lower() != ".jsonl":
        return None
    path = resolve_link(Path(args.json))
    return None if path.exists() and not path.is_file() else path


def _open_progress_file(
    args: argparse.Namespace, shard: Shard, sources: Sequence[Source], predictor: Predictor
) -> ProgressFile:
    """The progress file of --json, with a description of everything that its content depends on."""
    path = _continuable_file(args)
    assert path is not None
    names = hashlib.sha256()
    for source in sources:
        names.update(f"{source.kind}:{source.name}\n".encode(errors="surrogateescape"))
    run = {
        "inputs": names.hexdigest(),
        "weights": digest_of_weights(predictor.network),
        "inference settings": dataclasses.asdict(predictor.settings) | {"scales": list(predictor.settings.scales)},
        "--amp": args.amp,
        "--shard": f"{shard.index}/{shard.count}",
        "--min-score": args.min_score,
        "frames of videos (--start, --duration, --stride)": [args.start, str(args.duration), args.stride],
        "tracking flags": [args.track, args.smooth, args.trails],
    }
    return ProgressFile.resume(path, run) if args.resume else ProgressFile.start(path, run)


def digest_of_weights(network: nn.Module) -> str:
    """A digest of all weights and buffers of a network."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _complete_people_file(args: argparse.Namespace, progress_file: ProgressFile) -> None:
    """Make an empty file if there are no frames. Keep the progress file only for another run with --resume."""
    path = Path(args.json)
    if not path.exists():
        path.touch()
    if not args.resume:
        progress_file.remove()


def _form_team(args: argparse.Namespace, runtime: Runtime) -> contextlib.AbstractContextManager[Team | None]:
    """The processes that share the work. They exchange results beside the first output."""
    continuable = _continuable_file(args)
    files = [path for path in (args.json, args.coco, args.csv) if path and not is_standard_output(path)]
    folders = [path for path in (args.output, args.heatmaps) if path]
    folder = None
    if files:
        folder = Path(f"{files[0]}.parts")
    elif folders:
        folder = Path(folders[0], ".parts")
    return form_team(args, runtime, folder, resume=args.resume, keep=continuable is not None)


@contextlib.contextmanager
def _open_people_files(
    args: argparse.Namespace, sources: Sequence[Source], predictor: Predictor, append: bool
) -> Iterator[list[Output]]:
    with contextlib.ExitStack() as stack:
        outputs: list[Output] = []
        if args.json:
            outputs.append(stack.enter_context(open_people_file(Path(args.json), sources, append)))
        if args.coco:
            coco_file = open_coco_file(Path(args.coco), sources, predictor.skeleton, select_exif_frame(args))
            outputs.append(stack.enter_context(coco_file))
        if args.csv:
            outputs.append(stack.enter_context(open_csv_file(Path(args.csv), predictor.skeleton)))
        yield outputs


def _size_of_lines(outputs: Sequence[Output]) -> int | None:
    """Size of the .jsonl file among the outputs; None if nothing has been written."""
    sizes = [output.size for output in outputs if isinstance(output, JsonLinesWriter)]
    return sizes[0] if sizes else None


def _choose_people(prediction: FramePrediction, min_score: float, tracker: FrameTracker | None) -> FramePrediction:
    """The prediction without people of low scores, and with the ids of the others if there is a tracker."""
    people = [person for person in prediction.people if person.score >= min_score]
    if tracker and isinstance(prediction.frame, Frame):
        people = tracker.update(prediction.frame, people)
    return prediction._replace(people=people)


def _write_people(prediction: FramePrediction, outputs: Sequence[Output]) -> None:
    frame = prediction.frame
    if isinstance(frame, Frame):
        for output in outputs:
            output.write(frame, prediction.people, frame.image)


def _report(args: argparse.Namespace, summary: PredictionSummary) -> None:
    if args.quiet:
        return
    messages = message_stream(*_people_files(args))
    print(summary, file=messages)
    written = [path for path in (args.output, *_people_files(args), args.heatmaps) if path and path != "-"]
    if written and summary.has_frames:
        print("wrote " + ", ".join(written), file=messages)


def _make_predictor(args: argparse.Namespace, rank_info: RankInfo) -> Predictor:
    use_device_of_rank(args, rank_info)
    return make_predictor(args)


def _people_files(args: argparse.Namespace) -> list[str]:
    return [path for path in (args.json, args.coco, args.csv) if path]


def _find_sources(args: argparse.Namespace, world_size: int) -> list[Source]:
    """The inputs that the flags name, each once; "-" stands for all lists of files."""
    inputs = list(args.inputs)
    names = dict.fromkeys(["-", *args.list] if "-" in inputs else args.list)
    if names and "-" not in inputs:
        inputs.append("-")
    lists = [_read_listed(args, name) for name in names]
    sources = find_sources(inputs, itertools.chain.from_iterable(lists), args.camera, recursive=args.recursive)
    if not sources:
        raise DataError("no input: name images, videos, folders or a camera, or pass a list of files with --list")
    live = [source.name for source in sources if isinstance(source, CameraSource)]
    streams = [source.name for source in sources if isinstance(source, UrlSource) and source.kind == "video"]
    if world_size > 1 and (live or streams or args.show):
        reason = "--show" if args.show else [*live, *streams][0]
        raise ConfigError(f"{reason} needs a single process; leave out --nproc and the launcher")
    if (args.shard or args.resume) and live:
        raise ConfigError(f"--shard and --resume need inputs that can be read again, unlike {live[0]}")
    if not has_pyav() and any(source.kind == "video" for source in sources):
        _log.info(WITHOUT_PYAV)
    return sources


def _read_listed(args: argparse.Namespace, name: str) -> list[str]:
    """The entries of a list of files; "-" is standard input."""
    if name == "-":
        return args.standard_input if args.standard_input is not None else read_file_list(sys.stdin.buffer)
    try:
        with open(name, "rb") as file:
            return read_file_list(file)
    except OSError as error:
        raise DataError(f"cannot read the list of files {name}: {error.strerror}; give a text file") from error


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


class FrameDrawer:
    """Writes drawings and heatmap sheets, and shows drawings in a window, as the flags ask for.

    Attributes:
        is_closed: whether the user has closed the window.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        predictor: Predictor,
        drawing_paths: Mapping[Source, Path],
        sheet_paths: Mapping[Source, Path],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._args = args
        self._stack = contextlib.ExitStack()
        self._outputs: list[Output] = []
        self._drawings: DrawingWriter | None = None
        self._window: Window | None = None
        self._trails = Trails() if args.trails else None
        if args.output:
            self._drawings = self._stack.enter_context(DrawingWriter(drawing_paths, args.codec))
            self._outputs.append(self._drawings)
        if args.heatmaps:
            self._outputs.append(HeatmapSheetWriter(predictor, sheet_paths))
        if args.show:
            self._window = self._stack.enter_context(contextlib.closing(Window(stop_requested)))
            self._outputs.append(self._window)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def is_closed(self) -> bool:
        return self._window is not None and self._window.closed

    def write(self, prediction: FramePrediction) -> None:
        """Draw the people in a frame."""
        frame = prediction.frame
        if not self._outputs or not isinstance(frame, Frame):
            return
        is_tracked = any(person.id is not None for person in prediction.people)
        drawing = draw_people(
            frame.image,
            prediction.people,
            keypoint_min_score=self._args.keypoint_min_score,
            line_width=self._args.line_width,
            colours=self._args.colours or ("person" if is_tracked else "side"),
        )
        if self._trails:
            self._trails.draw(drawing, frame, prediction.people)
        for output in self._outputs:
            output.write(frame, prediction.people, drawing)

    def finish_source(self) -> None:
        """Complete the video of the last source."""
        if self._drawings:
            self._drawings.finish_source()


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
