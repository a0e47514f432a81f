"""``predict``: from inputs to files, in one process or several, and again from where an earlier run has stopped."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenet.devices.ranks import Ranks
from posenet.errors import ConfigError, DataError
from posenet.files import name_file_in_errors, resolve_link
from posenet.images import write_image
from posenet.inference.media.frames import is_single_input, read_frames, require_pyav
from posenet.inference.media.sources import Source, find_sources, parse_standard_input
from posenet.inference.outputs.drawings import require_display, show_in_window, write_drawings
from posenet.inference.outputs.journal import Journal, journal_paths, remove_earlier_journals
from posenet.inference.outputs.output_files import (
    Outputs,
    PredictionOptions,
    choose_journaled_file,
    choose_outputs,
    sheet_path,
)
from posenet.inference.outputs.people_files import ImageIds, Write, open_people_files, write_json_folder
from posenet.inference.outputs.summary import PredictionSummary
from posenet.inference.pipeline import predict_frames, track_people
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.inference.split_among_processes import split_into_blocks
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import TrackingConfig
from posenet.visualization.sheets import draw_heatmap_sheet

JOURNAL_VERSION = 7
"""Journals of another version are not continued."""

AnyPredictor = Predictor | str | os.PathLike[str] | Callable[[], Predictor]
"""A predictor, a name or a file for ``Predictor``, or a function that loads one."""

_log = logging.getLogger(__name__)


def predict(
    inputs: str | os.PathLike[str] | int | Iterable[str | os.PathLike[str] | int],
    predictor: AnyPredictor = "simplepose",
    *,
    progress: bool = True,
    ranks: Ranks | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    on_result: Callable[[Result], object] | None = None,
    other_inputs: Iterable[str | Path | int] = (),
    **options: Any,
) -> PredictionSummary:
    """Find people in images, videos, streams and cameras; draw them, and write their keypoints.

    For results in memory, iterate over ``Predictor.stream``.

    Args:
        inputs: one or several: files, folders, patterns, addresses and numbers of cameras. "-" is a list of
            files from standard input.
        predictor: what finds people: a predictor, a name or a file for ``Predictor``, or a function that loads one.
        progress: whether to show a progress bar.
        ranks: the processes that share the inputs; None is this process alone.
        stop_requested: checked after every image; true ends the prediction. What has been found is written.
        on_result: called with every result, in order, when it is written.
        other_inputs: further files that are never replaced.
        options:
            output: folder for drawings of images and videos. If no output is named at all, a new folder.
            json: file of all people in COCO's results format, with file names, and in videos with frame numbers and
                times; ``.jsonl`` has one person per line while the prediction runs. Or a folder for a file of each
                image.
            coco: file of a COCO data set: all images, with the people as annotations.
            csv: file of a table with one person per row.
            heatmaps: folder for sheets with all maps of the network.
            show: show the drawings in a window.
            overwrite: replace files that exist. An input is never replaced.
            resume: continue the files of people after an interruption.
            recursive: search the subfolders of folders too.
            start, duration, stride: seconds of every video to skip, seconds to read, and every how many frames.
            track: give every person of a video an id that stays.
            smooth: remove the jitter of keypoints in videos; implies ``track``.
            style: of the drawings; see ``draw_people``.
            keypoint_score: keypoints with lower scores are not drawn.

    Returns:
        Counts, speed, the files that were written, and what could not be read, which is not an error here.

    Raises:
        PosenetError: an input does not exist, an output exists, none of the inputs can be read, or the network cannot
            be loaded.
    """
    ranks = ranks or Ranks()
    run = _prepare(inputs, predictor, PredictionOptions(**options), list(other_inputs), ranks)
    summary = PredictionSummary(run.sources, run.predictor.skeleton)
    try:
        ranks.run_on_all(lambda: _predict_share(run, summary, progress, stop_requested, on_result))
        summary = summary.merge(ranks.gather_objects(summary))
        ranks.run_on_main(lambda: _join_journals(run, summary))
    finally:
        if ranks.is_main:
            _remove_empty(run.outputs.new_folders)
    if ranks.is_main and (advice := summary.advise_on_min_score(run.predictor.min_score)):
        _log.warning("%s", advice)
    if summary.has_frames:
        # After an interruption, several processes leave the people in their journals.
        are_joined = ranks.world_size == 1 or not summary.is_interrupted
        files = run.outputs.files if are_joined else []
        summary.files = [path for path in [*run.outputs.folders, *files] if path != "-"]
    return summary


def check_inputs_and_outputs(
    inputs: Sequence[str], options: PredictionOptions, other_inputs: Iterable[str | Path | int], world_size: int
) -> None:
    """Raise what ``predict`` raises for inputs and outputs. Standard input, which can be read once, is not read."""
    sources = [] if "-" in inputs else _find_inputs(inputs, options, world_size)
    if options.names_outputs:
        choose_outputs(sources, options, other_inputs, world_size)


@dataclass(frozen=True)
class _Run:
    """What all processes together predict, with which network, and the journals from which it can be resumed."""

    options: PredictionOptions
    ranks: Ranks
    sources: list[Source]
    outputs: Outputs
    predictor: Predictor
    tracking: TrackingConfig | None
    share: list[Source]
    """The sources of this process."""
    journaled: Path | None
    """The file of people that has journals; None without."""
    description: dict[str, Any]
    """The outputs, and what they depend on, for the journals. Messages name the keys whose values differ."""

    def journals(self) -> list[Journal]:
        """The journals of all processes."""
        if self.journaled is None:
            return []
        paths = journal_paths(self.journaled, self.ranks.world_size)
        batch_size = self.predictor.settings.batch_size
        return [Journal(path, self.sources, self.predictor.skeleton, batch_size) for path in paths]

    def tracked(self, results: Iterable[Result]) -> Iterable[Result]:
        """The results, with people who have numbers if they are tracked."""
        return results if self.tracking is None else track_people(results, self.tracking)


def _prepare(
    inputs: Any,
    predictor: AnyPredictor,
    options: PredictionOptions,
    other_inputs: Sequence[str | Path | int],
    ranks: Ranks,
) -> _Run:
    """Find the inputs, choose the outputs and load the network."""
    names = _names_of(inputs)

    def find() -> tuple[list[Source], Outputs]:
        sources = _find_inputs(names, options, ranks.world_size)
        return sources, choose_outputs(sources, options, other_inputs, ranks.world_size)

    if options.show:
        require_display()
    sources, outputs = ranks.broadcast_object(ranks.run_on_main(find))
    if options.is_tracked and all(source.kind == "image" for source in sources):
        _log.warning("tracking has no effect on images, only on videos and cameras")
    try:
        loaded = ranks.run_on_all(lambda: _load(predictor))
    except BaseException:
        _remove_empty(outputs.new_folders)
        raise
    loaded = copy.copy(loaded)  # the caller's predictor stays as it is
    loaded.keep_maps |= bool(outputs.sheets)
    tracking = None
    if options.is_tracked:
        tracking = dataclasses.replace(loaded.tracking, smooth=loaded.tracking.smooth or options.smooth)
    blocks = split_into_blocks(sources, loaded.settings.batch_size)
    # The sources with their blocks. ``outputs`` has them without; they are equal, because blocks are not compared.
    sources = list(itertools.chain(*blocks))
    share = list(itertools.chain(*ranks.share(blocks)))
    journaled = choose_journaled_file(outputs, sources, options, len(blocks), ranks.world_size)
    file = outputs.first_file
    if file is not None and not options.resume:
        own = [] if journaled is None else journal_paths(file, ranks.world_size)
        ranks.run_on_main(lambda: remove_earlier_journals(file, own))
    description = {} if journaled is None else _describe(options, sources, journaled, outputs, loaded, tracking)
    return _Run(options, ranks, sources, outputs, loaded, tracking, share, journaled, description)


def _remove_empty(folders: Sequence[str]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # there is something in it
            os.rmdir(folder)


def _load(predictor: AnyPredictor) -> Predictor:
    if isinstance(predictor, Predictor):
        return predictor
    return Predictor(predictor) if isinstance(predictor, (str, os.PathLike)) else predictor()


def _names_of(inputs: Any) -> list[str]:
    """The names of one or several inputs; ``DataError`` if one is something else, such as an image in memory."""
    names = [inputs] if is_single_input(inputs) else list(inputs)
    for name in names:
        if not isinstance(name, (str, os.PathLike, int)):
            raise DataError(
                f"an input must be a name or the number of a camera, not an object of type {type(name).__name__}; "
                "Predictor.stream takes images in memory"
            )
    return [str(os.fspath(name)) if isinstance(name, os.PathLike) else str(name) for name in names]


def _find_inputs(inputs: Sequence[str], options: PredictionOptions, world_size: int) -> list[Source]:
    """The inputs, each once."""
    listed: list[Source] = []
    if "-" in inputs:
        if sys.stdin is None:
            raise DataError("standard input is closed; give the names of files instead of -")
        listed = parse_standard_input(sys.stdin.buffer.read())
    sources = find_sources(inputs, listed=listed, recursive=options.recursive)
    if not sources:
        raise DataError("no input: the list of files is empty")
    live = [source.name for source in sources if source.may_be_live]
    if world_size > 1 and (live or options.show):
        reason = "show=True" if options.show else live[0]
        raise ConfigError(f"{reason} needs a single process; start one, without a launcher")
    if options.resume and live:
        raise ConfigError(f"resume=True needs inputs that can be read again, unlike {live[0]}")
    kinds = {source.kind for source in sources}
    if "video" in kinds or (options.output and "camera" in kinds):
        require_pyav()
    return sources


def _describe(
    options: PredictionOptions,
    sources: Sequence[Source],
    journaled: Path,
    outputs: Outputs,
    predictor: Predictor,
    tracking: TrackingConfig | None,
) -> dict[str, Any]:
    """See ``_Run.description``."""
    inputs = hashlib.sha256()
    for source in sources:
        # A file that was replaced has another size, as a rule. Its time may change without its content, in a copy.
        path = source.path
        size = path.stat().st_size if path is not None and path.is_file() else 0
        inputs.update(f"{source.name}:{size}\n".encode(errors="surrogateescape"))
    settings = dataclasses.asdict(predictor.settings)
    return {
        "journal": JOURNAL_VERSION,
        "inputs": inputs.hexdigest(),
        # A run with other folders would replace files there that it has not written, or leave out what is recorded.
        "outputs": [_relative_path(path, journaled.parent) for path in [*outputs.folders, *outputs.files]],
        **predictor.origin,
        "inference settings": settings | {"scales": list(predictor.settings.scales)},
        "--min-score": predictor.min_score,
        "frames of videos (--start, --duration, --stride)": [options.start, str(options.duration), options.stride],
        "tracking settings": dataclasses.asdict(tracking) if tracking else None,
    }


def _relative_path(path: str, folder: Path) -> str:
    """The path relative to a folder, or absolute on another drive of Windows."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return os.path.abspath(path)


def _predict_share(
    run: _Run,
    summary: PredictionSummary,
    progress: bool,
    stop_requested: Callable[[], bool],
    on_result: Callable[[Result], object] | None,
) -> None:
    """Predict the sources of this process. One process alone writes the files of people, and perhaps a journal.

    Of several processes, each writes a journal, and ``_join_journals`` the files.
    """
    is_alone = run.ranks.world_size == 1
    closed = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(name_file_in_errors(", ".join([*run.outputs.files, *run.outputs.folders])))
        journals = run.journals()
        journal = journals[run.ranks.rank] if journals else None
        if journal:
            files = [resolve_link(Path(file)) for file in run.outputs.files]
            stack.enter_context(journal.open(run.description, files, resume=run.options.resume))
        write_people = open_people_files(run.outputs, run.sources, run.predictor, stack) if is_alone else []
        image_outputs = stack.enter_context(contextlib.ExitStack())
        write_images = _open_image_outputs(run, image_outputs, stop_requested, closed.set)
        results = stack.enter_context(contextlib.closing(_find_people(run, journal, summary, stop_requested)))
        # How many frames a video has is not known before it is read.
        total = len(run.share) if all(source.kind == "image" for source in run.share) else None
        is_shown = progress and run.ranks.is_main
        bar = stack.enter_context(progress_bar(title="predict", total=total, disable=not is_shown))
        begin = time.perf_counter()
        writing = 0.0
        for result in run.tracked(results):
            frame = result.frame
            summary.add(result)
            start = time.perf_counter()
            if result.error is None:
                # An earlier run has written the images of what is recorded.
                writers = write_people if frame.is_recorded else [*write_people, *write_images]
                for write in writers:
                    write(result)
            writing += time.perf_counter() - start
            if on_result is not None:
                on_result(result)
            if frame.expected and frame.source == run.sources[-1]:  # nothing follows this video
                bar.total = bar.n + frame.expected
            bar.update()
            summary.is_interrupted = stop_requested()
            if summary.is_interrupted or closed.is_set():
                break
        else:
            if journal:
                image_outputs.close()  # a later run writes no drawing of what is complete
                journal.finish()
        summary.seconds = time.perf_counter() - begin
        # A copy: after an interruption, the stages are at work for a while longer.
        summary.busy = {**summary.busy, "drawing and writing": writing}
        summary.is_closed = closed.is_set()
        error = summary.unreadable_error()
        if error and not summary.is_interrupted and not summary.has_frames and is_alone:
            raise error  # inside the context, so that no files of people replace earlier ones


def _find_people(
    run: _Run, journal: Journal | None, summary: PredictionSummary, stop_requested: Callable[[], bool]
) -> Generator[Result, None, None]:
    """All results of this process: first those that its journal has."""
    options = run.options
    if journal:
        yield from journal.replay()
    sources = [source for source in run.share if not journal or source.block >= journal.next_block]
    if len(sources) < len(run.share):
        _log.info("already done: %s", pluralize(len(run.share) - len(sources), "input"))
    frames = read_frames(
        sources,
        start=options.start,
        duration=options.duration,
        stride=options.stride,
        stop_requested=stop_requested,
        reduction_of=None if options.show or run.outputs.drawings or run.outputs.sheets else run.predictor.reduction_of,
    )
    with contextlib.closing(frames):
        # Of the video in which the journal ends, the images are read again, for the drawing; the people are known.
        for recorded in journal.begun if journal else []:
            frame = next(frames, None)
            if frame is None or (frame.source, frame.number) != (recorded.frame.source, recorded.frame.number):
                raise DataError(
                    f"{recorded.frame.source.name} has changed since the prediction began; start again without "
                    "resume=True"
                )
            yield dataclasses.replace(recorded, frame=frame)
        with contextlib.closing(predict_frames(run.predictor, frames, summary.busy)) as results:
            for result in results:
                summary.counts["predicted"] += result.error is None
                yield result
                # Not before the outputs of earlier sources are complete: a later run would not write them again.
                if journal:
                    journal.write(result)


def _open_image_outputs(
    run: _Run, stack: contextlib.ExitStack, stop_requested: Callable[[], bool], on_close: Callable[[], None]
) -> list[Write]:
    """Open the outputs that each image or video has for itself; see ``show_in_window``.

    Images are written at once; ``stack`` completes videos and files of people.
    """
    outputs, options = run.outputs, run.options
    writers: list[Write] = []
    shows = []
    if outputs.people:
        writers.append(stack.enter_context(write_json_folder(outputs.people, ImageIds(run.sources))))
    if outputs.drawings:
        shows.append(stack.enter_context(write_drawings(outputs.drawings)))
    if options.show:
        shows.append(stack.enter_context(show_in_window(stop_requested, on_close)))

    def draw(result: Result) -> None:
        frame = result.frame
        drawing = result.plot(style=options.style, keypoint_min_score=options.keypoint_score)
        for show in shows:
            show(frame, drawing)
        if outputs.sheets:
            maps = result.maps if result.maps is not None else run.predictor.compute_maps(frame.image)
            sheet = draw_heatmap_sheet(frame.image, maps, run.predictor.skeleton, drawing)
            write_image(sheet_path(outputs.sheets[frame.source], frame), sheet)

    return [*writers, draw] if shows or outputs.sheets else writers


def _join_journals(run: _Run, summary: PredictionSummary) -> None:
    """Write the files of people of several processes, and remove the journals unless ``resume`` may need them."""
    if summary.is_interrupted:
        return
    if summary.is_closed and run.journaled:
        _log.info("The window was closed before the end of the inputs; --resume continues %s", run.journaled)
        return
    journals = run.journals()
    if run.ranks.world_size > 1 and journals:
        error = summary.unreadable_error()
        if error and not summary.has_frames:
            raise error
        with contextlib.ExitStack() as stack:
            stack.enter_context(name_file_in_errors(", ".join(run.outputs.files)))
            writers = open_people_files(run.outputs, run.sources, run.predictor, stack)
            for journal in journals:
                with journal.open(run.description, (), resume=True):
                    for result in run.tracked(journal.replay()):
                        if result.error is None:
                            for write in writers:
                                write(result)
                    journal.finish()  # which replaying has cut off
    if not run.options.resume:
        for journal in journals:
            journal.path.unlink()
