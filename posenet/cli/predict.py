"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenet.cli.options import (
    SWITCH,
    add_exif_frame_option,
    fraction,
    message_stream,
    non_negative_int,
    positive_int,
    seconds,
)
from posenet.cli.prediction_drawing import DrawingPaths, FrameDrawer
from posenet.cli.prediction_inputs import find_inputs, read_file_list
from posenet.cli.prediction_people import PeopleFiles, PredictionSummary, people_files, resumable_file
from posenet.cli.predictor_options import add_predictor_options, make_predictor
from posenet.cli.ranks import (
    RankInfo,
    add_rank_options,
    form_team,
    open_runtime,
    run_on_all,
    run_on_main,
    run_on_ranks,
    use_device_of_rank,
)
from posenet.cli.tracking_options import add_tracking_options, make_frame_tracker
from posenet.devices.ranks import Ranks
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError
from posenet.files import check_outputs, is_standard_output
from posenet.inference.backends.graph import PARALLEL_RUNS
from posenet.inference.backends.loading import is_exported_file
from posenet.inference.media.frame_prediction import FramePrediction, predict_units, prediction_format
from posenet.inference.media.frame_tracking import FrameTracker
from posenet.inference.media.sources import FileSource, Frame, Source, count_frames
from posenet.inference.media.units import WHOLE, Shard, Unit, split_into_units
from posenet.inference.media.video import FrameSelection
from posenet.inference.media.window import Window
from posenet.inference.predictor import Predictor
from posenet.inference.shared_work import UnitItem, share_units
from posenet.messages import pluralize
from posenet.progress import progress_bar
from posenet.settings import Config, InferenceConfig
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE

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
        of_checkpoint=True,
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


def run(args: argparse.Namespace) -> int:
    """Predict all frames that can be read, in one process or several.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    if args.nproc and "-" in [*args.inputs, *args.list]:
        # The processes that this one starts have no standard input.
        args.standard_input = read_file_list(sys.stdin.buffer)
    return run_on_ranks(args, _predict)


def _predict(args: argparse.Namespace, rank_info: RankInfo) -> None:
    """Predict as one of the processes. Rank 0 writes the files of people and reports."""
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(open_runtime(args, rank_info))
        job = _prepare_job(args, runtime, rank_info)
        files = stack.enter_context(PeopleFiles(args, job.sources, job.config))
        progress = run_on_main(runtime, lambda: files.open_progress(job.describe(args)))
        if progress.units:
            done, wanted = job.count_inputs(job.numbers[: progress.units]), job.count_inputs(job.numbers)
            _log.info("%d of %s are done already", done, pluralize(wanted, "input"))
        numbers = job.numbers[progress.units :]
        keep = resumable_file(args) is not None
        team = stack.enter_context(
            form_team(args, runtime, _exchange_folder(args), resume=progress.is_continued, keep=keep)
        )
        stop_requested = stack.enter_context(catch_stop_signals())
        if runtime.is_main:
            files.open()
        drawer = stack.enter_context(FrameDrawer(args, job.predictor, job.paths, stop_requested))
        total = job.count_frames(numbers) if runtime.is_main and not args.quiet else None
        bar = stack.enter_context(progress_bar(title="predict", total=total))

        def predict(numbers: Sequence[int]) -> Generator[UnitItem[FramePrediction], None, None]:
            return drawer.draw(_predict_people(args, job, numbers, stop_requested, lambda: drawer.is_closed))

        item_format = prediction_format(job.sources, job.predictor.skeleton)
        items = share_units(numbers, predict, team, item_format, stop_requested)
        for item in stack.enter_context(contextlib.closing(items)):  # rank 0 receives all items, the others none
            files.write(item)
            if item.item is not None:
                bar.update()
        is_interrupted = stop_requested()
        if runtime.is_main:
            is_complete = files.num_units == len(numbers)
            # Another rank may have received the signal to stop.
            is_interrupted = is_interrupted or (not is_complete and not drawer.is_closed)
            if is_complete:
                files.complete()
            if not is_interrupted and not files.summary.has_frames:
                files.summary.raise_if_unreadable()  # before the files of people replace earlier ones
    if runtime.is_main and (numbers or not progress.units):
        _report(args, files.summary)
    # Ctrl-C is the ordinary way to end a camera or a live stream.
    if is_interrupted and not files.summary.has_live_frames:
        raise KeyboardInterrupt
    files.summary.raise_if_unreadable()


@dataclass(frozen=True)
class _Job:
    """What is predicted, by which network; the same on all ranks."""

    sources: list[Source]
    paths: DrawingPaths
    predictor: Predictor
    config: Config
    """The configuration of the network."""
    tracker: FrameTracker | None
    units: list[Unit]
    shard: Shard
    selection: FrameSelection

    @property
    def numbers(self) -> range:
        """The numbers of the shard's units."""
        return self.shard.select(len(self.units))

    def count_inputs(self, numbers: Sequence[int]) -> int:
        """The number of sources of some units."""
        return sum(len(self.units[number]) for number in numbers)

    def count_frames(self, numbers: Sequence[int]) -> int | None:
        """The number of frames of some units; None if it is unknown."""
        return count_frames((self.sources[index] for number in numbers for index in self.units[number]), self.selection)

    def describe(self, args: argparse.Namespace) -> dict[str, Any]:
        """Everything that the people depend on, for the progress file; the names are those of its messages."""
        names = hashlib.sha256()
        for source in self.sources:
            names.update(f"{source.kind}:{source.name}\n".encode(errors="surrogateescape"))
        settings = self.predictor.settings
        return {
            "inputs": names.hexdigest(),
            "weights": self.predictor.backend.digest(),
            "inference settings": dataclasses.asdict(settings) | {"scales": list(settings.scales)},
            "--amp": args.amp,
            "--backend": args.backend,
            "--shard": f"{self.shard.index}/{self.shard.count}",
            "--min-score": args.min_score,
            "frames of videos (--start, --duration, --stride)": [args.start, str(args.duration), args.stride],
            "tracking settings": dataclasses.asdict(self.tracker.settings) if self.tracker else None,
        }


def _prepare_job(args: argparse.Namespace, runtime: Ranks, rank_info: RankInfo) -> _Job:
    """Check the flags, find the inputs and load the network. An error that all ranks have is reported once."""

    def choose_paths() -> DrawingPaths:
        paths = DrawingPaths.choose(args, sources)
        originals = [source.path for source in sources if isinstance(source, FileSource)]
        check_outputs([*paths.files, *map(Path, people_files(args))], [*originals, Path(args.checkpoint)])
        return paths

    def load_predictor() -> tuple[Predictor, Config]:
        use_device_of_rank(args, rank_info)
        return make_predictor(args, parallel=_makes_many_batches(sources))

    shard = run_on_main(runtime, lambda: _check_flags(args))
    sources = run_on_main(runtime, lambda: find_inputs(args, runtime.world_size))
    paths = run_on_all(runtime, choose_paths)
    if args.show:
        Window.require_display()
    tracker = make_frame_tracker(args)
    predictor, config = run_on_all(runtime, load_predictor)
    units = split_into_units(sources, predictor.settings.batch_size)
    selection = FrameSelection(args.start, args.duration, args.stride)
    return _Job(sources, paths, predictor, config, tracker, units, shard, selection)


def _makes_many_batches(sources: Sequence[Source]) -> bool:
    """Whether the sources make so many batches that running several at the same time is faster than one by one.

    Cameras do not, and addresses may be live streams: their frames arrive one by one.
    """
    has_video = any(source.kind == "video" for source in sources)
    has_many_images = len(sources) > PARALLEL_RUNS * InferenceConfig.batch_size
    return (has_video or has_many_images) and all(isinstance(source, FileSource) for source in sources)


def _check_flags(args: argparse.Namespace) -> Shard:
    """Check flags that depend on each other; return the shard to predict."""
    if not (args.output or people_files(args) or args.heatmaps or args.show):
        raise ConfigError(
            "nothing to write: give --output DIR, --json FILE, --coco FILE, --csv FILE, --heatmaps DIR or --show"
        )
    if args.heatmaps and is_exported_file(args.checkpoint):
        raise ConfigError(
            f"--heatmaps: {args.checkpoint} is an exported file, which outputs no maps; use its checkpoint"
        )
    if args.resume and (resumable_file(args) is None or args.coco or args.csv):
        raise ConfigError("--resume continues a .jsonl file: give --json FILE.jsonl, and neither --coco nor --csv")
    return Shard.parse(args.shard) if args.shard else WHOLE


def _exchange_folder(args: argparse.Namespace) -> Path | None:
    """The folder through which several processes exchange results: beside the first file, or in the first folder."""
    files = [path for path in people_files(args) if not is_standard_output(path)]
    if files:
        return Path(f"{files[0]}.parts")
    folders = [path for path in (args.output, args.heatmaps) if path]
    return Path(folders[0], ".parts") if folders else None


def _predict_people(
    args: argparse.Namespace,
    job: _Job,
    numbers: Sequence[int],
    stop_requested: Callable[[], bool],
    is_closed: Callable[[], bool],
) -> Generator[UnitItem[FramePrediction], None, None]:
    """Predict some units, without people of low scores and with ids if people are tracked."""
    items = predict_units(job.predictor, job.sources, job.units, numbers, job.selection, stop_requested)
    with contextlib.closing(items):
        for number, prediction in items:
            if prediction is not None:
                prediction = _choose_people(prediction, args.min_score, job.tracker)
            yield UnitItem(number, prediction)
            if stop_requested() or is_closed():
                return


def _choose_people(prediction: FramePrediction, min_score: float, tracker: FrameTracker | None) -> FramePrediction:
    """The prediction without people of low scores, and with the ids of the others if there is a tracker."""
    people = [person for person in prediction.people if person.score >= min_score]
    if tracker and isinstance(prediction.frame, Frame):
        people = tracker.update(prediction.frame, people)
    return prediction._replace(people=people)


def _report(args: argparse.Namespace, summary: PredictionSummary) -> None:
    if args.quiet:
        return
    messages = message_stream(*people_files(args))
    print(summary, file=messages)
    written = [path for path in (args.output, *people_files(args), args.heatmaps) if path and path != "-"]
    if written and summary.has_frames:
        print("wrote " + ", ".join(written), file=messages)
