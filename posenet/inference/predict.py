"""``predict``: from inputs to files, and again from where an earlier run has stopped."""

import contextlib
import copy
import itertools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, DataError
from posenet.files import is_standard_output, name_file_in_errors, name_numbers, remove_leftovers, resolve_link
from posenet.images import write_image
from posenet.inference.media.frames import (
    Source,
    find_sources,
    is_single_input,
    parse_standard_input,
    read_frames,
    require_pyav,
    split_into_blocks,
)
from posenet.inference.outputs import (
    Outputs,
    PredictionOptions,
    Record,
    Show,
    Write,
    choose_outputs,
    complete_inputs,
    image_numbers,
    read_lines,
    record_of,
    require_display,
    show_in_window,
    write_coco,
    write_csv,
    write_drawing,
    write_json,
    write_lines,
)
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.messages import pluralize, to_single_line
from posenet.progress_bar import progress_bar
from posenet.skeleton import COCO, Skeleton
from posenet.visualization.drawing import round_min_score
from posenet.visualization.sheets import draw_heatmap_sheet

AnyPredictor = Predictor | str | os.PathLike[str] | Callable[[int | None], Predictor]
"""A predictor, a name or a file for ``Predictor``, or a function of the number of images, if known, that loads one."""
MAX_NAMED_FAILURES = 5
"""Number of unreadable sources that the last message names."""

_log = logging.getLogger(__name__)


@dataclass(repr=False)
class PredictionSummary:
    """What has been found in some sources, and which of them could not be read completely."""

    sources: Sequence[Source]
    skeleton: Skeleton = COCO
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of images, video frames, live frames, and detections: people without an id."""
    tracks: set[tuple[Source, int]] = field(default_factory=set)
    """The people with an id."""
    best_score: float = 0.0
    """Highest score, also if it is below the ``min_score`` of the prediction."""
    unreadable: dict[Source, DataError] = field(default_factory=dict)
    """The first error of every source."""
    done: int = 0
    """Inputs that an earlier run has completed; the counts are without them."""
    is_interrupted: bool = False
    seconds: float = 0.0
    """From the first image that was read to the last that was written, without those of an earlier run."""
    files: list[str] = field(default_factory=list)
    """The files and folders that were written."""

    def add(self, result: Result) -> None:
        """Count a result; log the first error of each source."""
        frame = result.frame
        if frame.error:
            if frame.source not in self.unreadable:
                self.unreadable[frame.source] = frame.error
                _log.warning("%s", frame.error)
            return
        self.best_score = max(self.best_score, result.best_score)
        self.tracks.update((frame.source, person.id) for person in result if person.id is not None)
        self.counts["detections"] += sum(person.id is None for person in result)
        self.counts["images" if frame.number is None else "video frames"] += 1
        self.counts["live frames"] += frame.is_live

    @property
    def has_frames(self) -> bool:
        """Whether any frame could be read, by an earlier run too."""
        return self.counts["images"] + self.counts["video frames"] + self.done > 0

    def __repr__(self) -> str:
        return f"<PredictionSummary {self}>"

    def __str__(self) -> str:
        """How many people were found in how many images and frames."""
        images, frames, detections = (self.counts[name] for name in ("images", "video frames", "detections"))
        counts = [pluralize(images, "image")] if images or not frames else []
        if frames:
            counts.append(pluralize(frames, "video frame"))
        if self.tracks:
            people = self.skeleton.count(len(self.tracks), "tracked")
            people += f" and {pluralize(detections, 'detection')}" if detections else ""
        elif frames:
            people = pluralize(detections, "detection")
        else:
            people = self.skeleton.count(detections)
        earlier = f"; {pluralize(self.done, 'input')} done before" if self.done else ""
        return f"{people} in {' and '.join(counts)}{earlier}"

    def speed(self) -> str:
        """Images or frames per second."""
        count = self.counts["images"] + self.counts["video frames"]
        if not count or not self.seconds:
            return ""
        unit = "frames" if self.counts["video frames"] else "images"
        return f"{count / self.seconds:.3g} {unit}/s"

    def advise_on_min_score(self, min_score: float) -> str:
        """What to say if nobody was found because all scores are below ``min_score``."""
        if self.tracks or self.counts["detections"] or not 0 < self.best_score < min_score:
            return ""
        return (
            f"no {self.skeleton.category} has a score of at least {min_score:g}; the best has {self.best_score:.2f}: "
            f"--min-score {round_min_score(self.best_score):g} shows it"
        )

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


def predict(
    inputs: str | os.PathLike[str] | int | Iterable[str | os.PathLike[str] | int],
    predictor: AnyPredictor = "simplepose",
    *,
    progress: bool = True,
    stop_requested: Callable[[], bool] = lambda: False,
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
        other_inputs: further files that are never replaced.
        options:
            output: folder for drawings of images and videos. If no output is named at all, a new folder.
            json: file of all people in COCO's results format, with file names, and in videos with frame numbers and
                times; ``.jsonl`` has one line per image or frame while the prediction runs. Or a folder for a file of
                each image.
            coco: file of a COCO data set: all images, with the people as annotations.
            csv: file of a table with one person per row.
            heatmaps: folder for sheets with all maps of the network.
            show: show the drawings in a window.
            overwrite: replace files that exist. An input is never replaced.
            resume: leave out inputs whose outputs are complete: their file in a folder, or their line in a ``.jsonl``
                file, which is needed if another file of all people is written.
            recursive: search the subfolders of folders too.
            start, duration, stride: seconds of every video to skip, seconds to read, and every how many frames.
            track: give every person of a video an id that stays; without the jitter of the keypoints if the setting
                ``tracking.smooth`` is true.

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
    outputs = choose_outputs(sources, chosen, other_inputs)
    try:
        done = complete_inputs(outputs.lines) if outputs.lines and chosen.resume else set()
        todo = [source for source in sources if not (chosen.resume and _is_done(source, outputs, done))]
        loaded = load_predictor(predictor, len(todo) if all(source.kind == "image" for source in todo) else None)
        loaded.keep_maps |= bool(outputs.sheets)
        summary = PredictionSummary(sources, loaded.skeleton, done=len(sources) - len(todo))
        _Run(chosen, todo, outputs, loaded, done, summary, stop_requested).predict(progress)
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
    names: list[Any] = []
    for name in [inputs] if is_single_input(inputs) else inputs:
        if not isinstance(name, (str, os.PathLike, int)):
            raise DataError(
                f"an input must be a name or the number of a camera, not an object of type {type(name).__name__}; "
                "Predictor.stream takes images in memory"
            )
        if str(name) != "-":
            names.append(name)
        elif sys.stdin is None:
            raise DataError("standard input is closed; give the names of files instead of -")
        else:
            names += parse_standard_input(sys.stdin.buffer.read())
    sources = find_sources(names, recursive=options.recursive)
    if not sources:
        raise DataError("no input: the list of files is empty")
    for source in sources if options.resume else ():
        if source.kind == "camera" or (source.kind == "video" and source.url is not None):  # perhaps a live stream
            raise ConfigError(f"--resume needs inputs that can be read again, unlike {source.name}")
    kinds = {source.kind for source in sources}
    if kinds != {"image"}:
        require_pyav()
    if options.track and kinds == {"image"}:
        _log.warning("tracking has no effect on images, only on videos and cameras")
    return sources


def _is_done(source: Source, outputs: Outputs, done: Collection[str]) -> bool:
    """Whether the outputs of a source are complete; ``done`` are the names that have all their lines."""
    paths = outputs.of_source(source)
    is_listed = source.name in done if outputs.lines else bool(paths)
    return is_listed and all(path.is_file() for path in paths)


def load_predictor(predictor: AnyPredictor, num_images: int | None = None) -> Predictor:
    """A predictor for a number of images, if that is known; that of the caller stays as it is."""
    if isinstance(predictor, (str, os.PathLike)):
        return Predictor(predictor, num_images=num_images)
    return copy.copy(predictor if isinstance(predictor, Predictor) else predictor(num_images))


class _WritingError(DataError):
    """What was found cannot be written, for another reason than the file system's, such as a size."""


@dataclass
class _Run:
    """Predicts sources, writes what is found, and counts it in the summary."""

    options: PredictionOptions
    todo: list[Source]
    outputs: Outputs
    predictor: Predictor
    done: Collection[str]
    """The names of the sources that have all their lines; of some in ``todo``, another file is missing."""
    summary: PredictionSummary
    stop_requested: Callable[[], bool]
    is_ended: bool = False
    """By the caller, or because the user has closed the window."""

    def predict(self, progress: bool) -> None:
        """Predict the sources that are not done."""
        options, todo, outputs, summary = self.options, self.todo, self.outputs, self.summary
        if summary.done:
            _log.info("already done: %s", pluralize(summary.done, "input"))
        if options.resume:
            files = [resolve_link(Path(file)) for file in outputs.files if not is_standard_output(file)]
            remove_leftovers(*files, *itertools.chain.from_iterable(map(outputs.of_source, todo)))
        self.numbers = image_numbers(summary.sources)
        with contextlib.ExitStack() as stack:
            stack.enter_context(name_file_in_errors(", ".join([*outputs.files, *outputs.folders])))
            self.lines = None
            if outputs.lines:
                self.lines = stack.enter_context(write_lines(outputs.lines, self.done if options.resume else None))
            self.writers = [stack.enter_context(self._open_file_of_all(name)) for name in outputs.of_all]
            if outputs.lines and self.done and self.writers:
                names = {source.name for source in summary.sources}
                for _, record in read_lines(outputs.lines):  # what an earlier run has found
                    for write in self.writers if record["file_name"] in names and "people" in record else ():
                        write(record)
            self.windows = [stack.enter_context(show_in_window(self.stop_requested, self._end))] if options.show else []
            is_drawn = options.show or outputs.drawings or outputs.sheets
            blocks = split_into_blocks(todo, self.predictor.settings.batch_size)  # as in evaluation
            frames = read_frames(
                itertools.chain.from_iterable(blocks),
                selection=options,
                stop_requested=self.stop_requested,
                reduction_of=None if is_drawn else self.predictor.reduction_of,
            )
            results = self.predictor.find_people(frames, track=options.track)
            stack.enter_context(contextlib.closing(results))
            # How many frames a video has is not known before it is read.
            total = len(todo) if all(source.kind == "image" for source in todo) else None
            self.bar = stack.enter_context(progress_bar(title="predict", total=total, disable=not progress))
            begin = time.perf_counter()
            for source, of_source in itertools.groupby(results, key=lambda result: result.frame.source):
                self._write_source(source, of_source)
                if self.is_ended:
                    break
            summary.seconds = time.perf_counter() - begin
            error = summary.unreadable_error()
            if error and not summary.is_interrupted and not summary.has_frames:
                raise error  # inside the context, so that no files of people replace earlier ones

    def _end(self) -> None:
        self.is_ended = True

    def _open_file_of_all(self, option: str) -> contextlib.AbstractContextManager[Write]:
        path = Path(self.outputs.of_all[option])
        if option == "json":
            return write_json(path)
        if option == "csv":
            return write_csv(path, self.predictor.skeleton)
        return write_coco(path, self.summary.sources, self.predictor.skeleton)

    def _write_source(self, source: Source, results: Iterable[Result]) -> None:
        """Write the outputs of one source, which are complete when this returns.

        The line of an image, and that which ends a video, come last: they say that the other outputs are there.
        """
        is_listed = source.name in self.done
        write_line = None if is_listed else self.lines
        writers, shows = [] if is_listed else [*self.writers], [*self.windows]
        record: Record = {}
        count = 0
        try:
            with contextlib.ExitStack() as files:
                for result in results:
                    if result.error is None:
                        if not count and (path := self.outputs.people.get(source)):
                            writers.append(files.enter_context(write_json(path)))
                        if not count and (path := self.outputs.drawings.get(source)):
                            shows.append(files.enter_context(write_drawing(path)))
                        record = self._write(result, writers, shows)
                        count += 1
                        if write_line and "frame" in record:
                            write_line(record)
                    if self._has_ended_after(result):
                        break
        except _WritingError as error:  # the files of this source are discarded
            for failed in itertools.chain([result], results):
                if self._has_ended_after(replace(failed, frame=replace(failed.frame, error=error))):
                    break
            return
        if not count:
            return
        if self.is_ended and "frame" in record and not result.frame.is_live:  # a video that was cut
            for path in self.outputs.of_source(source):
                names = (path.with_stem(f"{path.stem}.part{number}") for number in name_numbers())
                path.replace(next(name for name in names if not name.exists()))
        elif write_line and "frame" in record:
            damage = self.summary.unreadable.get(source)
            write_line({"file_name": source.name, "frames": count} | ({"error": str(damage)} if damage else {}))
        elif write_line:
            write_line(record)

    def _write(self, result: Result, writers: Sequence[Write], shows: Sequence[Show]) -> Record:
        """Write a result everywhere but into the lines; ``_WritingError`` if a format does not allow it."""
        frame = result.frame
        sheet = self.outputs.sheets.get(frame.source)
        try:
            if shows or sheet:
                drawing = result.plot()
                for show in shows:
                    show(frame, drawing)
                if sheet:
                    assert result.maps is not None  # the predictor keeps them
                    drawn = draw_heatmap_sheet(frame.image, result.maps, result.skeleton, drawing)
                    write_image(sheet if frame.number is None else sheet / f"{frame.number:06d}.jpg", drawn)
            record = record_of(result, self.numbers)
            for write in writers:
                write(record)
            return record
        except OSError:  # a full disk, for example
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            text = f"what was found in {frame.source.name} cannot be written: {to_single_line(reason)}"
            raise _WritingError(text) from error

    def _has_ended_after(self, result: Result) -> bool:
        """Count a result that has been written, or has an error; return whether the prediction ends here."""
        self.summary.add(result)
        if result.frame.expected and result.frame.source == self.todo[-1]:  # nothing follows this video
            self.bar.total = self.bar.n + result.frame.expected
        self.bar.update()
        self.summary.is_interrupted = self.stop_requested()
        self.is_ended |= self.summary.is_interrupted
        return self.is_ended
