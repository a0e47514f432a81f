"""``predict``: from inputs to files, and again from where an earlier run has stopped."""

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

from posenet.errors import ConfigError, DataError
from posenet.files import name_file_in_errors, resolve_link
from posenet.images import write_image
from posenet.inference.media.frames import is_single_input, read_frames, require_pyav
from posenet.inference.media.sources import Source, find_sources, parse_standard_input
from posenet.inference.outputs.corrections import choose_format, write_corrections
from posenet.inference.outputs.drawings import require_display, show_in_window, write_drawings
from posenet.inference.outputs.journal import Journal, journal_path, remove_earlier_journal
from posenet.inference.outputs.output_files import (
    Outputs,
    PredictionOptions,
    choose_outputs,
    needs_journal,
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
            export: file for correction in a labelling tool; see ``posenet.export_results``.
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
    run = _prepare(inputs, predictor, PredictionOptions(**options), list(other_inputs))
    summary = PredictionSummary(run.sources, run.predictor.skeleton)
    try:
        _predict(run, summary, progress, stop_requested, on_result)
    finally:
        _remove_empty(run.outputs.new_folders)
    if run.journal and not summary.is_interrupted:
        if summary.is_closed:
            file = run.outputs.first_file
            _log.info("The window was closed before the end of the inputs; --resume continues %s", file)
        elif not run.options.resume:
            run.journal.path.unlink()
    if advice := summary.advise_on_min_score(run.predictor.min_score):
        _log.warning("%s", advice)
    if summary.has_frames:
        summary.files = [path for path in [*run.outputs.folders, *run.outputs.files] if path != "-"]
    return summary


@dataclass(frozen=True)
class _Run:
    """What is predicted, with which network, and the journal from which it can be resumed."""

    options: PredictionOptions
    sources: list[Source]
    outputs: Outputs
    predictor: Predictor
    tracking: TrackingConfig | None
    journal: Journal | None
    """Of the first file of people; None without."""

    def tracked(self, results: Iterable[Result]) -> Iterable[Result]:
        """The results, with people who have numbers if they are tracked."""
        return results if self.tracking is None else track_people(results, self.tracking)


def _prepare(
    inputs: Any, predictor: AnyPredictor, options: PredictionOptions, other_inputs: Sequence[str | Path | int]
) -> _Run:
    """Find the inputs, choose the outputs and load the network."""
    names = _names_of(inputs)
    if options.show:
        require_display()
    sources = _find_inputs(names, options)
    if options.export:
        choose_format(Path(options.export))
    outputs = choose_outputs(sources, options, other_inputs)
    if options.is_tracked and all(source.kind == "image" for source in sources):
        _log.warning("tracking has no effect on images, only on videos and cameras")
    try:
        loaded = _load(predictor)
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
    file = outputs.first_file
    if file is None or not needs_journal(file, sources, options, len(blocks)):
        if file is not None:
            remove_earlier_journal(file)
        return _Run(options, sources, outputs, loaded, tracking, journal=None)
    path = journal_path(file)
    description = _describe(options, sources, path.parent, outputs, loaded, tracking)
    journal = Journal(path, description, sources, loaded.skeleton, loaded.settings.batch_size)
    return _Run(options, sources, outputs, loaded, tracking, journal)


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


def _find_inputs(inputs: Sequence[str], options: PredictionOptions) -> list[Source]:
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
    if options.resume and live:
        raise ConfigError(f"resume=True needs inputs that can be read again, unlike {live[0]}")
    kinds = {source.kind for source in sources}
    if "video" in kinds or (options.output and "camera" in kinds):
        require_pyav()
    return sources


def _describe(
    options: PredictionOptions,
    sources: Sequence[Source],
    folder: Path,
    outputs: Outputs,
    predictor: Predictor,
    tracking: TrackingConfig | None,
) -> dict[str, Any]:
    """The outputs, and what they depend on, for a journal in ``folder``."""
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
        "outputs": [_relative_path(path, folder) for path in [*outputs.folders, *outputs.files]],
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


def _predict(
    run: _Run,
    summary: PredictionSummary,
    progress: bool,
    stop_requested: Callable[[], bool],
    on_result: Callable[[Result], object] | None,
) -> None:
    """Predict all sources, write what is found, and count it in ``summary``."""
    journal = run.journal
    closed = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(name_file_in_errors(", ".join([*run.outputs.files, *run.outputs.folders])))
        if journal:
            files = [resolve_link(Path(file)) for file in run.outputs.files]
            stack.enter_context(journal.open(files, resume=run.options.resume))
        write_people = open_people_files(run.outputs, run.sources, run.predictor, stack)
        if run.outputs.export:
            writer = write_corrections(Path(run.outputs.export), run.predictor.skeleton)
            write_people.append(stack.enter_context(writer))
        image_outputs = stack.enter_context(contextlib.ExitStack())
        write_images = _open_image_outputs(run, image_outputs, stop_requested, closed.set)
        results = stack.enter_context(contextlib.closing(_find_people(run, summary, stop_requested)))
        # How many frames a video has is not known before it is read.
        total = len(run.sources) if all(source.kind == "image" for source in run.sources) else None
        bar = stack.enter_context(progress_bar(title="predict", total=total, disable=not progress))
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
        if error and not summary.is_interrupted and not summary.has_frames:
            raise error  # inside the context, so that no files of people replace earlier ones


def _find_people(
    run: _Run, summary: PredictionSummary, stop_requested: Callable[[], bool]
) -> Generator[Result, None, None]:
    """All results: first those that the journal has."""
    options, journal = run.options, run.journal
    if journal:
        yield from journal.replay()
    sources = [source for source in run.sources if not journal or source.block >= journal.next_block]
    if len(sources) < len(run.sources):
        _log.info("already done: %s", pluralize(len(run.sources) - len(sources), "input"))
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
