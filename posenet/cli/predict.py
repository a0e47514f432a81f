"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenet.cli.logging_setup import print_message
from posenet.cli.options import add_overwrite_option, add_switch, fraction, message_stream, positive_int, seconds
from posenet.cli.prediction_outputs import (
    ImagePaths,
    PredictionSummary,
    check_paths,
    choose_outputs,
    draw_frame,
    is_lines_file,
    journaled_file,
    open_drawing_outputs,
    open_people_files,
    people_files,
)
from posenet.cli.predictor_options import add_checkpoint_option, add_network_options, make_predictor
from posenet.cli.processes import add_process_options, run_on_ranks
from posenet.devices.ranks import Ranks
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError, DataError
from posenet.files import name_file_in_errors, remove_leftovers, resolve_link
from posenet.inference.media.frames import predict_frames, read_frames, require_pyav, track_people
from posenet.inference.media.journal import (
    Journal,
    check_resumable,
    completion_note_path,
    journal_paths,
    read_completion_note,
    write_completion_note,
)
from posenet.inference.media.outputs import Write, require_display
from posenet.inference.media.sources import Frame, Source, find_sources, parse_standard_input, split_into_blocks
from posenet.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shares import share
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import TrackingConfig, load_config
from posenet.visualization.drawing import MIN_SCORE, Trails

_log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``predict``."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="images, videos, folders, quoted glob patterns, numbered images (frame_%%04d.png), addresses (http, "
        "https, rtsp) or cameras (0, /dev/video0); - reads a list of files, or one image, from standard input",
    )
    add_checkpoint_option(parser)

    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="DIR", help="folder for drawings of images and videos")
    group.add_argument(
        "--json",
        metavar="FILE",
        help="write all people to this file, as COCO results with file names, and in videos with frame numbers and "
        "times; a .jsonl file gets one person per line while the tool runs; - is standard output",
    )
    group.add_argument(
        "--coco",
        metavar="FILE",
        help="write a COCO data set: all images, with the people as annotations; file names are relative to the folder "
        "that holds all inputs",
    )
    group.add_argument("--csv", metavar="FILE", help="write a table with one person per row")
    group.add_argument(
        "--heatmaps", metavar="DIR", help="folder for all maps of the network, one labelled sheet per image or frame"
    )
    add_switch(
        group, "--show", help="show the drawings in a window; Q ends, any other key continues with the next image"
    )
    group.add_argument(
        "--min-score", type=fraction, default=MIN_SCORE, metavar="X", help="leave out people with a lower score, 0-1"
    )
    add_overwrite_option(group)
    add_switch(
        group,
        "--resume",
        help="continue the files of --json, --coco and --csv after an interruption; start them if there are none, do "
        "nothing if they are complete",
    )

    group = parser.add_argument_group("input")
    add_switch(
        group,
        "--recursive",
        help="also search the subfolders of folders, and write drawings into subfolders of the same names",
    )
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="predict only part I of N equal parts of the inputs, where I counts from 0, for example "
        "$SLURM_ARRAY_TASK_ID/100 (default: all)",
    )

    group = parser.add_argument_group("video")
    group.add_argument(
        "--start", type=seconds, default=0.0, metavar="SECONDS", help="skip the beginning of every video"
    )
    group.add_argument(
        "--duration",
        type=seconds,
        default=math.inf,
        metavar="SECONDS",
        help="read only this long from every video (default: all)",
    )
    group.add_argument(
        "--stride", type=positive_int, default=1, metavar="N", help="read only every N-th frame of videos"
    )
    add_switch(
        group,
        "--track",
        help="give every person of a video an id and a colour that stay; people are left out until they are confirmed",
    )
    add_switch(group, "--smooth", help="remove the jitter of keypoints in videos; implies --track")
    add_switch(group, "--trails", help="draw where every person of a video was in the last seconds; implies --track")

    add_network_options(parser, amp="auto")
    add_process_options(parser)


def run(args: argparse.Namespace) -> int:
    """Predict all frames that can be read, in one process or several; return the exit status."""
    return run_on_ranks(args, lambda ranks: _predict(args, ranks), lambda: _check_before_start(args))


def _check_before_start(args: argparse.Namespace) -> None:
    """Check the flags, inputs and outputs before processes start. Only one of them can read standard input."""
    sources = [] if "-" in args.inputs else _find_inputs(args, args.nproc)
    check_paths(args, sources, choose_outputs(args, sources), args.nproc)


@dataclass(frozen=True)
class _Job:
    """What all processes together predict, with which network, and the journals from which it can be resumed."""

    args: argparse.Namespace
    ranks: Ranks
    sources: list[Source]
    image_paths: ImagePaths
    predictor: Predictor
    tracking: TrackingConfig | None
    blocks: Sequence[list[Source]]
    """The sources, or those of a shard, in numbered blocks."""
    journaled: Path | None
    """The file of people that has journals; None without."""
    description: dict[str, Any] = field(default_factory=dict)
    """Everything that the people depend on, for the journals. Messages name the keys whose values differ."""

    def journal_of(self, rank: int) -> Journal | None:
        """The journal of one of the processes."""
        if self.journaled is None:
            return None
        path = journal_paths(self.journaled, self.ranks.world_size)[rank]
        return Journal(path, self.sources, self.predictor.skeleton)


def _predict(args: argparse.Namespace, ranks: Ranks) -> int:
    """Predict as one of the processes. Rank 0 writes the files of people and reports.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    with catch_stop_signals() as stop_requested:
        job = _prepare(args, ranks)
        summary = PredictionSummary(job.sources)
        if not ranks.run_on_all(lambda: _is_complete(job, summary)):
            ranks.run_on_all(lambda: _predict_share(job, summary, stop_requested))
            summary = summary.merge(ranks.gather_objects(summary))
            ranks.run_on_main(lambda: _complete(job, summary))
            if ranks.is_main and not args.quiet:
                messages = message_stream(*people_files(args))
                print_message(summary, file=messages)
                # After Ctrl-C, several processes leave the people in their journals.
                are_joined = ranks.world_size == 1 or not summary.is_interrupted
                outputs = [args.output, *(people_files(args) if are_joined else []), args.heatmaps]
                written = [path for path in outputs if path and path != "-"]
                if written and summary.has_frames:
                    print_message("wrote " + ", ".join(written), file=messages)
    # Ctrl-C is the ordinary way to end a camera or a live stream.
    if summary.is_interrupted and not summary.counts["live frames"]:
        if ranks.is_main:  # which reports it, once
            raise KeyboardInterrupt
        return INTERRUPTED
    ranks.raise_on_all(summary.unreadable_error() if ranks.is_main else None)
    return 0


def _prepare(args: argparse.Namespace, ranks: Ranks) -> _Job:
    """Check the flags, find the inputs and load the network."""
    shard, num_shards = _parse_shard(args.shard)
    sources: list[Source] = ranks.broadcast_object(ranks.run_on_main(lambda: _find_inputs(args, ranks.world_size)))
    image_paths = ranks.run_on_all(lambda: choose_outputs(args, sources))
    ranks.run_on_main(lambda: check_paths(args, sources, image_paths, ranks.world_size))
    if args.show:
        require_display()
    tracking = None
    if args.track or args.smooth or args.trails:
        smoothing = ["tracking.smooth=true"] if args.smooth else []
        tracking = load_config(args.config, [*args.overrides, *smoothing]).tracking
        if all(source.kind == "image" for source in sources):
            _log.warning("--track, --smooth and --trails have no effect on images, only on videos and cameras")
    predictor = ranks.run_on_all(lambda: make_predictor(args, ranks, args.min_score))
    all_blocks = split_into_blocks(sources, predictor.settings.batch_size)
    sources = [source for block in all_blocks for source in block]
    blocks = share(all_blocks, shard, num_shards)
    journaled = _choose_journaled_file(args, sources, len(blocks), ranks.world_size)
    job = _Job(args, ranks, sources, image_paths, predictor, tracking, blocks, journaled)
    return job if journaled is None else dataclasses.replace(job, description=_describe(job))


def _find_inputs(args: argparse.Namespace, world_size: int) -> list[Source]:
    """The inputs that the flags name, each once."""
    listed: list[Source] = []
    if "-" in args.inputs:
        if sys.stdin is None:
            raise DataError("standard input is closed; give the names of files instead of -")
        listed = parse_standard_input(sys.stdin.buffer.read())
    sources = find_sources(args.inputs, listed=listed, recursive=args.recursive)
    if not sources:
        raise DataError("no input: the list of files is empty")
    live = [source.name for source in sources if source.may_be_live]
    if world_size > 1 and (live or args.show):
        reason = "--show" if args.show else live[0]
        raise ConfigError(f"{reason} needs a single process; leave out --nproc and the launcher")
    if (args.shard or args.resume) and live:
        raise ConfigError(f"--shard and --resume need inputs that can be read again, unlike {live[0]}")
    kinds = {source.kind for source in sources}
    if "video" in kinds or (args.output and kinds & {"numbered", "camera"}):
        require_pyav()
    return sources


def _parse_shard(text: str | None) -> tuple[int, int]:
    """The index and the count of ``3/100``; the whole without a text."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ConfigError(f"--shard {text}: give the number of the shard and their count, such as 0/100")
    index, count = int(match[1]), int(match[2])
    if index >= count:
        raise ConfigError(f"--shard {text}: shards count from 0, so the first number must be below the second")
    return index, count


def _choose_journaled_file(
    args: argparse.Namespace, sources: Sequence[Source], num_blocks: int, world_size: int
) -> Path | None:
    """The file of people that has journals, because it can be resumed or several processes write it; None without.

    Raises:
        ConfigError: no flag names a file of people that can have journals.
    """
    file = journaled_file(args)
    if args.resume or (world_size > 1 and people_files(args)):
        if file is None:
            flag = "--resume" if args.resume else "a prediction by several processes"
            raise ConfigError(f"{flag} needs a file of people: give --json, --coco or --csv a name")
        return file
    can_continue = file is not None and is_lines_file(file) and not any(source.may_be_live for source in sources)
    return file if can_continue and num_blocks > 1 else None


def _describe(job: _Job) -> dict[str, Any]:
    """See ``_Job.description``."""
    args = job.args
    names = hashlib.sha256()
    for source in job.sources:
        names.update(f"{source.kind}:{source.name}\n".encode(errors="surrogateescape"))
    weights = args.checkpoint
    if Path(weights).is_file():
        with open(weights, "rb") as file:
            weights = hashlib.file_digest(file, "sha256").hexdigest()
    settings = dataclasses.asdict(job.predictor.settings)
    return {
        "inputs": names.hexdigest(),
        "weights": weights,
        "inference settings": settings | {"scales": list(job.predictor.settings.scales)},
        "--amp": args.amp,
        "--backend": args.backend,
        "--shard": args.shard,
        "--min-score": args.min_score,
        "frames of videos (--start, --duration, --stride)": [args.start, str(args.duration), args.stride],
        "tracking settings": dataclasses.asdict(job.tracking) if job.tracking else None,
    }


def _is_complete(job: _Job, summary: PredictionSummary) -> bool:
    """Whether an earlier run with ``--resume`` is complete. If so, add to the summary what that run could not read.

    Raises:
        DataError: the file of people can neither be continued nor started.
    """
    if not job.args.resume or job.journaled is None:
        return False
    note = completion_note_path(job.journaled)
    unreadable = read_completion_note(note, job.description, job.sources)
    if unreadable is None:
        check_resumable(job.journaled, job.ranks.world_size)
        return False
    missing = [path for path in people_files(job.args) if path != "-" and not Path(path).exists()]
    if missing:
        raise DataError(
            f"{missing[0]} is missing, but according to {note} the prediction is complete; start again with "
            "--overwrite instead of --resume"
        )
    _log.info("%s is complete", job.journaled)
    for journal in journal_paths(job.journaled, job.ranks.world_size):
        if journal != note:
            journal.unlink(missing_ok=True)  # the earlier run may have been killed just before this
    for source, text in unreadable.items():
        summary.add(Frame(source, error=DataError(text)), [])
    return True


def _predict_share(job: _Job, summary: PredictionSummary, stop_requested: Callable[[], bool]) -> None:
    """Predict the blocks of this process. One process alone writes the files of people, and perhaps a journal.

    Of several processes, each writes a journal, and ``_complete`` the files.
    """
    args, ranks = job.args, job.ranks
    is_alone = ranks.world_size == 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(name_file_in_errors(", ".join(people_files(args)) or args.output or args.heatmaps or ""))
        journal = job.journal_of(ranks.rank)
        if journal:
            stack.enter_context(journal.open(job.description, people_files(args), resume=args.resume))
        if args.resume and ranks.is_main:
            for path in people_files(args):
                remove_leftovers(resolve_link(Path(path)))
        files = open_people_files(args, job.sources, job.predictor, stack) if is_alone else []
        closed = threading.Event()
        trails = Trails() if args.trails else None
        drawing_outputs = open_drawing_outputs(args, job.image_paths, job.predictor, stack, stop_requested, closed.set)

        for frame, people in journal.replay() if journal else ():
            summary.add(frame, people)
            _write(files, frame, people)
        blocks = share(job.blocks, ranks.rank, ranks.world_size)
        remaining = [block for block in blocks if not journal or block[0].block >= journal.next_block]
        sources = [source for block in remaining for source in block]
        if len(remaining) < len(blocks):
            _log.info("already done: %s", pluralize(sum(map(len, blocks)) - len(sources), "input"))
        frames = read_frames(
            sources, start=args.start, duration=args.duration, stride=args.stride, stop_requested=stop_requested
        )
        predictions = stack.enter_context(contextlib.closing(predict_frames(job.predictor, frames)))
        # How many frames a video has is not known.
        total = len(sources) if all(source.kind == "image" for source in sources) else None
        bar = stack.enter_context(progress_bar(title="predict", total=total, disable=args.quiet or not ranks.is_main))
        for frame, people in track_people(predictions, job.tracking) if job.tracking else predictions:
            summary.add(frame, people)
            if journal:
                journal.write(frame, people)
            _write(files, frame, people)
            if drawing_outputs and not frame.error:
                drawing = draw_frame(frame, people, trails)
                for write in drawing_outputs:
                    write(frame, drawing)
            bar.update()
            if stop_requested() or closed.is_set():
                break
        else:
            if journal:
                journal.finish()
        summary.is_interrupted = stop_requested()
        summary.is_closed = closed.is_set()
        error = summary.unreadable_error()
        if error and not summary.is_interrupted and not summary.has_frames and is_alone:
            raise error  # inside the context, so that no files of people replace earlier ones


def _write(outputs: Sequence[Write], frame: Frame, people: Sequence[Person]) -> None:
    """Write a frame to outputs, if it could be read."""
    if not frame.error:
        for write in outputs:
            write(frame, people)


def _complete(job: _Job, summary: PredictionSummary) -> None:
    """Join the journals of several processes to the files of people, and leave a note for ``--resume``."""
    if summary.is_interrupted or job.journaled is None:
        return
    if summary.is_closed:
        _log.info("The window was closed before the end of the inputs; --resume continues %s", job.journaled)
        return
    note = completion_note_path(job.journaled)
    journals = [path for path in journal_paths(job.journaled, job.ranks.world_size) if path != note]
    if journals:
        error = summary.unreadable_error()
        if error and not summary.has_frames:
            raise error
        with contextlib.ExitStack() as stack:
            stack.enter_context(name_file_in_errors(", ".join(people_files(job.args))))
            files = open_people_files(job.args, job.sources, job.predictor, stack)
            for rank in range(job.ranks.world_size):
                journal = job.journal_of(rank)
                assert journal is not None
                with journal.open(job.description, people_files(job.args), resume=True):
                    for frame, people in journal.replay():
                        _write(files, frame, people)
    if job.args.resume:
        unreadable = {job.sources.index(source): str(error) for source, error in summary.unreadable.items()}
        write_completion_note(note, job.description, unreadable)
    else:
        note.unlink(missing_ok=True)
    for path in journals:
        path.unlink()
