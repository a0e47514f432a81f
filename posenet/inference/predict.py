"""``predict``: from inputs to files, and again from where an earlier run has stopped."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import os
import sys
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
from posenet.inference.outputs.corrections import choose_format, write_corrections
from posenet.inference.outputs.drawings import Show, require_display, show_in_window, write_drawing
from posenet.inference.outputs.output_files import Outputs, PredictionOptions, choose_outputs
from posenet.inference.outputs.people_files import (
    ImageIds,
    LinesFile,
    Record,
    Write,
    record_of,
    write_coco,
    write_csv,
    write_json,
)
from posenet.inference.outputs.summary import PredictionSummary
from posenet.inference.pipeline import split_into_blocks
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
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
    if chosen.export:
        choose_format(Path(chosen.export), sources)
    outputs = choose_outputs(sources, chosen, other_inputs)
    try:
        lines = LinesFile(outputs.lines, resume=chosen.resume) if outputs.lines else None
        todo = [source for source in sources if not (chosen.resume and _is_done(source, outputs, lines))]
        loaded = _load(predictor, todo)
        loaded.keep_maps |= bool(outputs.sheets)
        summary = PredictionSummary(sources, loaded.skeleton, done=len(sources) - len(todo))
        _Run(chosen, outputs, loaded, lines, summary, stop_requested, on_result).predict(todo, progress)
    finally:
        for folder in outputs.new_folders:
            with contextlib.suppress(OSError):  # there is something in it
                os.rmdir(folder)
    if advice := summary.advise_on_min_score(loaded.min_score):
        _log.warning("%s", advice)
    if summary.has_frames:
        summary.files = [path for path in [*outputs.folders, *outputs.files] if path != "-"]
    return summary


def _find_inputs(inputs: Any, options: PredictionOptions) -> list[Source]:
    """The inputs, each once; ``DataError`` if one is no name, such as an image in memory."""
    names = [inputs] if is_single_input(inputs) else list(inputs)
    for name in names:
        if not isinstance(name, (str, os.PathLike, int)):
            raise DataError(
                f"an input must be a name or the number of a camera, not an object of type {type(name).__name__}; "
                "Predictor.stream takes images in memory"
            )
    listed: list[Source] = []
    if "-" in map(str, names):
        if sys.stdin is None:
            raise DataError("standard input is closed; give the names of files instead of -")
        listed = parse_standard_input(sys.stdin.buffer.read())
    sources = find_sources(names, listed=listed, recursive=options.recursive)
    if not sources:
        raise DataError("no input: the list of files is empty")
    for source in sources if options.resume else ():
        if source.kind == "camera" or (source.kind == "video" and source.url is not None):  # perhaps a live stream
            raise ConfigError(f"--resume needs inputs that can be read again, unlike {source.name}")
    kinds = {source.kind for source in sources}
    if "video" in kinds or (options.output and kinds & {"camera", "animation"}):
        require_pyav()
    if (options.track or options.smooth) and kinds == {"image"}:
        _log.warning("tracking has no effect on images, only on videos and cameras")
    return sources


def _is_done(source: Source, outputs: Outputs, lines: LinesFile | None) -> bool:
    """Whether the outputs of a source are complete."""
    paths = outputs.of_source(source)
    is_listed = source.name in lines.done if lines else bool(paths)
    return is_listed and all(path.is_file() for path in paths)


def _load(predictor: AnyPredictor, todo: Sequence[Source]) -> Predictor:
    """A predictor; that of the caller stays as it is."""
    num_images = len(todo) if all(source.kind == "image" for source in todo) else None
    if isinstance(predictor, (str, os.PathLike)):
        return Predictor(predictor, num_images=num_images)
    return copy.copy(predictor if isinstance(predictor, Predictor) else predictor(num_images))


@dataclass
class _Run:
    """Predicts sources, writes what is found, and counts it in the summary."""

    options: PredictionOptions
    outputs: Outputs
    predictor: Predictor
    lines: LinesFile | None
    summary: PredictionSummary
    stop_requested: Callable[[], bool]
    on_result: Callable[[Result], object] | None
    writers: list[Write] = field(default_factory=list)
    """Of the files of all people."""
    shows: list[Show] = field(default_factory=list)
    """Of the window."""
    is_ended: bool = False
    """By the caller, or because the user has closed the window."""

    @cached_property
    def ids(self) -> ImageIds:
        """Those of all sources."""
        return ImageIds(self.summary.sources)

    def predict(self, todo: list[Source], progress: bool) -> None:
        """Predict the sources that are not done."""
        options, outputs, lines, summary = self.options, self.outputs, self.lines, self.summary
        if summary.done:
            _log.info("already done: %s", pluralize(summary.done, "input"))
        if options.resume:
            files = [resolve_link(Path(file)) for file in outputs.files if not is_standard_output(file)]
            files += itertools.chain.from_iterable(map(outputs.of_source, todo))
            remove_leftovers(*(path for path in files if path.parent.is_dir()))
        with contextlib.ExitStack() as stack:
            stack.enter_context(name_file_in_errors(", ".join([*outputs.files, *outputs.folders])))
            if lines:
                stack.enter_context(lines.open())
            of_all = [
                stack.enter_context(self._open_people_file(name, Path(path))) for name, path in outputs.of_all.items()
            ]
            self.writers = [] if options.resume else of_all
            if options.show:
                self.shows.append(stack.enter_context(show_in_window(self.stop_requested, self._end)))
            results = stack.enter_context(contextlib.closing(self._find_people(todo)))
            # How many frames a video has is not known before it is read.
            total = len(todo) if all(source.kind == "image" for source in todo) else None
            bar = stack.enter_context(progress_bar(title="predict", total=total, disable=not progress))
            begin = time.perf_counter()
            for source, of_source in itertools.groupby(results, key=lambda result: result.frame.source):
                self._write_source(source, of_source, bar, is_last=source == todo[-1])
                if self.is_ended:
                    break
            summary.seconds = time.perf_counter() - begin
            # A copy: after an interruption, the stages are at work for a while longer.
            summary.busy = {**summary.busy}
            for source in summary.sources:
                if lines and lines.done.get(source.name) and source not in todo:
                    summary.unreadable[source] = DataError(lines.done[source.name])
            error = summary.unreadable_error()
            if error and not summary.is_interrupted and not summary.has_frames:
                raise error  # inside the context, so that no files of people replace earlier ones
            if lines and options.resume and of_all:
                for source, record in lines.records(summary.sources):
                    for write in of_all:
                        write(source, record)

    def _end(self) -> None:
        self.is_ended = True

    def _open_people_file(self, option: str, path: Path) -> contextlib.AbstractContextManager[Write]:
        skeleton = self.predictor.skeleton
        if option == "json":
            return write_json(path)
        if option == "coco":
            return write_coco(path, self.summary.sources, skeleton)
        if option == "csv":
            return write_csv(path, skeleton)
        return write_corrections(path, skeleton, choose_format(path, self.summary.sources))

    def _find_people(self, todo: Sequence[Source]) -> Generator[Result, None, None]:
        options, predictor = self.options, self.predictor
        is_drawn = options.show or self.outputs.drawings or self.outputs.sheets
        frames = read_frames(
            itertools.chain.from_iterable(split_into_blocks(todo, predictor.settings.batch_size)),  # as in evaluation
            start=options.start,
            duration=options.duration,
            stride=options.stride,
            stop_requested=self.stop_requested,
            reduction_of=None if is_drawn else predictor.reduction_of,
        )
        return predictor.find_people(frames, track=options.track, smooth=options.smooth, busy=self.summary.busy)

    def _write_source(self, source: Source, results: Iterable[Result], bar: Any, is_last: bool) -> None:
        """Write the outputs of one source, which are complete when this returns.

        If they cannot be written for another reason than the file system's, such as a size that the format does not
        allow, the source counts as one that could not be read. The line of an image, and that which ends a video, come
        last: they say that the other outputs are there.
        """
        summary, busy = self.summary, self.summary.busy
        writers, shows = [*self.writers], [*self.shows]
        lines = self.lines if self.lines and source.name not in self.lines.done else None
        record: Record = {}
        num_written = 0
        is_cut = False
        unreadable: DataError | None = None  # the first frame that could not be read
        failure: DataError | None = None  # of writing
        with contextlib.ExitStack() as files:
            for result in results:
                frame, begin = result.frame, time.perf_counter()
                if result.error is not None:
                    unreadable = unreadable or result.error
                elif failure is None:
                    try:
                        if not num_written:
                            self._open_files(source, files, writers, shows)
                        num_written += 1
                        record = self._write(result, writers, shows)
                        if lines and frame.number is not None:
                            lines.write(record)
                    except OSError:  # a full disk, for example
                        raise
                    except Exception as error:
                        reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
                        text = f"what was found in {source.name} cannot be written: {to_single_line(reason)}"
                        failure = DataError(text)
                        files.pop_all().__exit__(DataError, failure, None)  # discards what has been written
                    seconds = busy.get("drawing and writing", 0.0)
                    busy["drawing and writing"] = seconds + time.perf_counter() - begin
                summary.add(result, failure)
                if self.on_result is not None:
                    self.on_result(result)
                if frame.expected and is_last:  # nothing follows this video
                    bar.total = bar.n + frame.expected
                bar.update()
                summary.is_interrupted = self.stop_requested()
                if summary.is_interrupted or self.is_ended:
                    self.is_ended = True
                    is_cut = frame.number is not None and not frame.is_live
                    break
        if not num_written or failure:
            return
        if is_cut:
            for path in self.outputs.of_source(source):
                path.replace(path.with_stem(f"{path.stem}.part"))
        elif lines and "frame" in record:
            why = {"error": str(unreadable)} if unreadable else {}
            lines.write({"file_name": source.name, "frames": num_written} | why)
        elif lines:
            lines.write(record)

    def _open_files(self, source: Source, files: contextlib.ExitStack, writers: list[Write], shows: list[Show]) -> None:
        """Open the files that a source has for itself."""
        if path := self.outputs.people.get(source):
            writers.append(files.enter_context(write_json(path)))
        if path := self.outputs.drawings.get(source):
            shows.append(files.enter_context(write_drawing(path)))

    def _write(self, result: Result, writers: Sequence[Write], shows: Sequence[Show]) -> Record:
        frame = result.frame
        sheet = self.outputs.sheets.get(frame.source)
        if shows or sheet:
            drawing = result.plot(keypoint_min_score=self.options.keypoint_score, numbers=self.options.numbers)
            for show in shows:
                show(frame, drawing)
            if sheet:
                assert result.maps is not None  # the predictor keeps them
                drawn = draw_heatmap_sheet(frame.image, result.maps, result.skeleton, drawing)
                write_image(sheet if frame.number is None else sheet / f"{frame.number:06d}.jpg", drawn)
        record = record_of(result, self.ids)
        for write in writers:
            write(frame.source, record)
        return record
