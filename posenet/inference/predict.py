"""``predict``: from inputs to files, and again from where an earlier run has stopped."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, DataError
from posenet.files import is_standard_output, name_file_in_errors, remove_leftovers, resolve_link
from posenet.images import write_image
from posenet.inference.media.frames import is_single_input, read_frames, require_pyav
from posenet.inference.media.sources import Source, find_sources, parse_standard_input
from posenet.inference.outputs.corrections import choose_format, require_images, write_corrections
from posenet.inference.outputs.drawings import Show, require_display, show_in_window, write_drawing
from posenet.inference.outputs.lines_file import LinesFile
from posenet.inference.outputs.output_files import Outputs, PredictionOptions, choose_outputs, sheet_path
from posenet.inference.outputs.people_files import ImageIds, Record, Write, open_people_files, record_of, write_json
from posenet.inference.outputs.summary import PredictionSummary
from posenet.inference.pipeline import predict_frames
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.inference.split_among_processes import split_into_blocks
from posenet.messages import pluralize, to_single_line
from posenet.progress_bar import progress_bar
from posenet.visualization.sheets import draw_heatmap_sheet

AnyPredictor = Predictor | str | os.PathLike[str] | Callable[[int | None], Predictor]
"""A predictor, a name or a file for ``Predictor``, or a function of the number of images, if known, that loads one."""

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
        predictor: what finds people: a predictor, a name or a file for ``Predictor``, or a function that loads one; it
            is called with the number of images, or None.
        progress: whether to show a progress bar.
        stop_requested: checked after every image; true ends the prediction. What has been found is written.
        on_result: called with every result, in order, when it is written.
        other_inputs: further files that are never replaced.
        options:
            output: folder for drawings of images and videos. If no output is named at all, a new folder.
            json: file of all people in COCO's results format, with file names, and in videos with frame numbers and
                times; ``.jsonl`` has one line per image or frame while the prediction runs. Or a folder for a file of
                each image.
            coco: file of a COCO data set: all images, with the people as annotations.
            csv: file of a table with one person per row.
            export: file for correction in a labelling tool; see ``posenet.export_results``.
            heatmaps: folder for sheets with all maps of the network.
            show: show the drawings in a window.
            overwrite: replace files that exist. An input is never replaced.
            resume: leave out inputs whose outputs are complete: their file in a folder, or their line in a ``.jsonl``
                file. One other file of all people is put together at the end, from the ``.jsonl`` file of
                the same name.
            recursive: search the subfolders of folders too.
            start, duration, stride: seconds of every video to skip, seconds to read, and every how many frames.
            track: give every person of a video an id that stays.
            smooth: remove the jitter of keypoints in videos; implies ``track``.
            keypoint_score: keypoints with lower scores are not drawn.
            numbers: write the number of each person above it in drawings.

    Returns:
        Counts, speed, the files that were written, and what could not be read, which is not an error here.

    Raises:
        PosenetError: an input does not exist, an output exists, none of the inputs can be read, or the network cannot
            be loaded.
    """
    chosen = PredictionOptions(**options)
    if chosen.show:
        require_display()
    sources = _find_inputs(inputs, chosen)
    if chosen.export and choose_format(Path(chosen.export)) != "sleap":
        require_images(sources)
    outputs = choose_outputs(sources, chosen, other_inputs)
    try:
        lines = LinesFile(outputs.lines, resume=chosen.resume) if outputs.lines else None
        loaded = _load(predictor, sources, outputs)
        summary = PredictionSummary(sources, loaded.skeleton)
        run = _Run(chosen, sources, outputs, loaded, lines, summary, stop_requested)
        _predict(run, progress, on_result)
    finally:
        for folder in outputs.new_folders:
            with contextlib.suppress(OSError):  # there is something in it
                os.rmdir(folder)
    if advice := summary.advise_on_min_score(loaded.min_score):
        _log.warning("%s", advice)
    if summary.has_frames:
        summary.files = [path for path in [*outputs.folders, *outputs.files] if path != "-"]
    return summary


@dataclass
class _Run:
    """What is predicted, with which network, what an earlier run has left, and what is written to."""

    options: PredictionOptions
    sources: list[Source]
    outputs: Outputs
    predictor: Predictor
    lines: LinesFile | None
    summary: PredictionSummary
    stop_requested: Callable[[], bool]
    writers: list[Write] = field(default_factory=list)
    """Of the files of all people."""
    shows: list[Show] = field(default_factory=list)
    """Of the window."""

    @cached_property
    def ids(self) -> ImageIds:
        return ImageIds(self.sources)

    def is_done(self, source: Source) -> bool:
        """Whether the outputs of a source are complete."""
        if not self.options.resume or (self.lines and source.name not in self.lines.done):
            return False
        paths = self.outputs.of_source(source)
        return bool(self.lines or paths) and all(path.is_file() for path in paths)


def _find_inputs(inputs: Any, options: PredictionOptions) -> list[Source]:
    """The inputs, each once; ``DataError`` if one is no name, such as an image in memory."""
    names = [inputs] if is_single_input(inputs) else list(inputs)
    for name in names:
        if not isinstance(name, (str, os.PathLike, int)):
            raise DataError(
                f"an input must be a name or the number of a camera, not an object of type {type(name).__name__}; "
                "Predictor.stream takes images in memory"
            )
    names = [str(os.fspath(name)) if isinstance(name, os.PathLike) else str(name) for name in names]
    listed: list[Source] = []
    if "-" in names:
        if sys.stdin is None:
            raise DataError("standard input is closed; give the names of files instead of -")
        listed = parse_standard_input(sys.stdin.buffer.read())
    sources = find_sources(names, listed=listed, recursive=options.recursive)
    if not sources:
        raise DataError("no input: the list of files is empty")
    for source in sources if options.resume else ():
        if source.may_be_live:
            raise ConfigError(f"resume=True needs inputs that can be read again, unlike {source.name}")
    kinds = {source.kind for source in sources}
    if "video" in kinds or (options.output and kinds & {"camera", "animation"}):
        require_pyav()
    if options.is_tracked and kinds == {"image"}:
        _log.warning("tracking has no effect on images, only on videos and cameras")
    return sources


def _load(predictor: AnyPredictor, sources: Sequence[Source], outputs: Outputs) -> Predictor:
    """A predictor; that of the caller stays as it is."""
    num_images = len(sources) if all(source.kind == "image" for source in sources) else None
    if isinstance(predictor, (str, os.PathLike)):
        predictor = Predictor(predictor, num_images=num_images)
    elif not isinstance(predictor, Predictor):
        predictor = predictor(num_images)
    predictor = copy.copy(predictor)
    predictor.keep_maps |= bool(outputs.sheets)
    return predictor


def _predict(run: _Run, progress: bool, on_result: Callable[[Result], object] | None) -> None:
    """Predict all sources that are not done, write what is found, and count it in the summary."""
    options, outputs, lines, summary = run.options, run.outputs, run.lines, run.summary
    todo = [source for source in run.sources if not run.is_done(source)]
    summary.done = len(run.sources) - len(todo)
    if summary.done:
        _log.info("already done: %s", pluralize(summary.done, "input"))
    if options.resume:
        files = [resolve_link(Path(file)) for file in outputs.files if not is_standard_output(file)]
        of_sources = itertools.chain.from_iterable(map(outputs.of_source, todo))
        remove_leftovers(*(path for path in (*files, *of_sources) if path.parent.is_dir()))
    closed = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(name_file_in_errors(", ".join([*outputs.files, *outputs.folders])))
        if lines:
            stack.enter_context(lines.open())
        files_of_all = open_people_files(outputs, run.sources, run.predictor, stack)
        if outputs.export:
            files_of_all.append(stack.enter_context(write_corrections(Path(outputs.export), run.predictor.skeleton)))
        run.writers = [] if options.resume else files_of_all
        if options.show:
            run.shows.append(stack.enter_context(show_in_window(run.stop_requested, closed.set)))
        results = stack.enter_context(contextlib.closing(_find_people(run, todo)))
        # How many frames a video has is not known before it is read.
        total = len(todo) if all(source.kind == "image" for source in todo) else None
        bar = stack.enter_context(progress_bar(title="predict", total=total, disable=not progress))
        begin = time.perf_counter()
        for source, of_source in itertools.groupby(results, key=lambda result: result.frame.source):
            with _SourceWriter(run, source) as writing:
                for result in of_source:
                    frame = result.frame
                    summary.add(writing.write(result))
                    if on_result is not None:
                        on_result(result)
                    if frame.expected and source == todo[-1]:  # nothing follows this video
                        bar.total = bar.n + frame.expected
                    bar.update()
                    summary.is_interrupted = run.stop_requested()
                    if summary.is_interrupted or closed.is_set():
                        writing.is_cut = frame.number is not None and not frame.is_live
                        break
            if summary.is_interrupted or closed.is_set():
                break
        summary.seconds = time.perf_counter() - begin
        # A copy: after an interruption, the stages are at work for a while longer.
        summary.busy = {**summary.busy}
        for source in run.sources:
            if lines and lines.done.get(source.name) and source not in todo:
                summary.unreadable[source] = DataError(lines.done[source.name])
        error = summary.unreadable_error()
        if error and not summary.is_interrupted and not summary.has_frames:
            raise error  # inside the context, so that no files of people replace earlier ones
        if lines and options.resume and files_of_all:
            for source, record in lines.records(run.sources):
                for write in files_of_all:
                    write(source, record)


def _find_people(run: _Run, sources: Sequence[Source]) -> Generator[Result, None, None]:
    """The results of all frames of some sources."""
    options, summary = run.options, run.summary
    blocks = split_into_blocks(sources, run.predictor.settings.batch_size)  # which also evaluation predicts
    frames = read_frames(
        itertools.chain.from_iterable(blocks),
        start=options.start,
        duration=options.duration,
        stride=options.stride,
        stop_requested=run.stop_requested,
        reduction_of=None if options.show or run.outputs.drawings or run.outputs.sheets else run.predictor.reduction_of,
    )
    with (
        contextlib.closing(frames),
        contextlib.closing(predict_frames(run.predictor, frames, summary.busy)) as results,
    ):
        identified: Iterable[Result] = results
        if options.is_tracked:
            from posenet.inference.tracking.results import track_people  # a part that can be removed

            tracking = run.predictor.tracking
            tracking = dataclasses.replace(tracking, smooth=tracking.smooth or options.smooth)
            identified = track_people(results, tracking)
        for result in identified:
            summary.counts["predicted"] += result.error is None
            yield result


class _SourceWriter(contextlib.ExitStack):
    """Writes the outputs of one source, which are complete when this context ends without an error.

    If they cannot be written for another reason than the file system's, such as a size that the format does not allow,
    the source counts as one that could not be read. The line of an image, and that which ends a video, come last: they
    say that the other outputs are there.

    Attributes:
        is_cut: whether the rest of a video was not read; then its drawing and its file of people are called ``.part``.
    """

    def __init__(self, run: _Run, source: Source) -> None:
        super().__init__()
        self.is_cut = False
        self._run = run
        self._source = source
        self._writers = [*run.writers]
        self._shows = [*run.shows]
        self._record: Record = {}
        self._frames = 0
        self._error: DataError | None = None  # the first frame that could not be read
        self._failure: DataError | None = None  # of writing
        self._lines = run.lines if run.lines and source.name not in run.lines.done else None

    def write(self, result: Result) -> Result:
        """Write what was found in an image or a frame that could be read; return it, with the error of writing it."""
        if result.error is not None:
            self._error = self._error or result.error
            return result
        begin = time.perf_counter()
        try:
            if not self._failure:
                self._write(result)
        except OSError:  # a full disk, for example
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            name = self._source.name
            self._failure = DataError(f"what was found in {name} cannot be written: {to_single_line(reason)}")
        busy = self._run.summary.busy
        busy["drawing and writing"] = busy.get("drawing and writing", 0.0) + time.perf_counter() - begin
        if self._failure is None:
            return result
        return dataclasses.replace(result, frame=dataclasses.replace(result.frame, error=self._failure))

    def __exit__(self, *error: Any) -> bool:
        failure = self._failure
        is_suppressed = super().__exit__(*((type(failure), failure, None) if failure else error))
        if error[0] is None and self._frames and not failure:
            self._complete()
        return bool(is_suppressed)

    def _write(self, result: Result) -> None:
        run, frame = self._run, result.frame
        if not self._frames:
            if path := run.outputs.people.get(self._source):
                self._writers.append(self.enter_context(write_json(path)))
            if path := run.outputs.drawings.get(self._source):
                self._shows.append(self.enter_context(write_drawing(path)))
        self._frames += 1
        if self._shows or run.outputs.sheets:
            self._draw(result)
        if self._writers or self._lines:
            self._record = record_of(result, run.ids)
            for write in self._writers:
                write(self._source, self._record)
            if self._lines and frame.number is not None:
                self._lines.write(self._record)

    def _draw(self, result: Result) -> None:
        options, frame = self._run.options, result.frame
        drawing = result.plot(keypoint_min_score=options.keypoint_score, numbers=options.numbers)
        for show in self._shows:
            show(frame, drawing)
        if path := self._run.outputs.sheets.get(self._source):
            maps = result.maps if result.maps is not None else self._run.predictor.compute_maps(frame.image)
            write_image(sheet_path(path, frame), draw_heatmap_sheet(frame.image, maps, result.skeleton, drawing))

    def _complete(self) -> None:
        if self.is_cut:
            for path in self._run.outputs.of_source(self._source):
                path.replace(path.with_stem(f"{path.stem}.part"))
        elif self._lines and "frame" in self._record:
            self._lines.finish(self._source, self._frames, self._error)
        elif self._lines:
            self._lines.write(self._record)
