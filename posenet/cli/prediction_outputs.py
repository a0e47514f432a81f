"""The outputs of ``predict``, as its flags ask for them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.files import check_outputs, is_standard_output
from posenet.images import write_image
from posenet.inference.media.outputs import (
    DrawingOutput,
    Output,
    Window,
    drawing_suffixes,
    output_paths,
    output_stems,
    with_suffix,
)
from posenet.inference.media.people_files import CocoOutput, CsvOutput, ImageIds, JsonLinesOutput, JsonOutput
from posenet.inference.media.sources import Frame, Source
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.visualization.people import KEYPOINT_MIN_SCORE, ColourScheme, Trails, draw_people
from posenet.visualization.sheets import draw_heatmap_sheet


class OutputStems(NamedTuple):
    """Where the drawings and the sheets of maps of each source go; see ``output_stems``."""

    drawings: dict[Source, Path]
    sheets: dict[Source, Path]


def people_files(args: argparse.Namespace) -> list[str]:
    """The files of people that the flags name."""
    return [path for path in (args.json, args.coco, args.csv) if path]


def choose_outputs(args: argparse.Namespace, sources: Sequence[Source]) -> OutputStems:
    """Choose the names of drawings and sheets, and check all paths that will be written.

    Raises:
        ConfigError: no flag asks for an output, or two of them do not go together.
        DataError: an output is an input or exists, or two outputs have the same path.
    """
    if not (args.output or people_files(args) or args.heatmaps or args.show):
        raise ConfigError(
            "nothing to write: give --output DIR, --json FILE, --coco FILE, --csv FILE, --heatmaps DIR or --show"
        )
    if args.json and args.json != "-" and Path(args.json).suffix.lower() not in ("", ".json", ".jsonl"):
        raise ConfigError(f"--json {args.json} writes JSON; end the name with .json, or .jsonl for one person per line")
    if args.output and args.heatmaps and Path(args.output).resolve() == Path(args.heatmaps).resolve():
        raise ConfigError("--heatmaps and --output give their files the same names; choose two folders")
    stems = OutputStems(
        output_stems(sources, Path(args.output), drawing_suffixes) if args.output else {},
        output_stems(sources, Path(args.heatmaps), sheet_suffixes) if args.heatmaps else {},
    )
    sheets = [with_suffix(stem, ".jpg") for source, stem in stems.sheets.items() if source.kind == "image"]
    paths = [*output_paths(stems.drawings, drawing_suffixes), *sheets, *map(Path, people_files(args))]
    originals = [source.path for source in sources if source.path is not None]
    check_outputs(paths, [*originals, Path(args.checkpoint)])
    if not (args.overwrite or args.resume):
        for path in [*paths, *output_paths(stems.sheets, sheet_suffixes)]:
            is_taken = any(path.iterdir()) if path.is_dir() else path.is_file()
            if is_taken and not is_standard_output(path):
                raise DataError(f"{path} exists; choose another name or folder, or replace it with --overwrite")
    return stems


def open_people_files(args: argparse.Namespace, sources: Sequence[Source], predictor: Predictor) -> list[Output]:
    """Open the files of people."""
    outputs: list[Output] = []
    if args.json:
        kind = JsonLinesOutput if is_lines_file(args.json) else JsonOutput
        outputs.append(kind(Path(args.json), ImageIds(sources)))
    if args.coco:
        outputs.append(CocoOutput(Path(args.coco), sources, predictor.skeleton, predictor.exif_frame))
    if args.csv:
        outputs.append(CsvOutput(Path(args.csv), predictor.skeleton))
    return outputs


def is_lines_file(path: str) -> bool:
    """Whether a file of people has one person per line."""
    return Path(path).suffix.lower() == ".jsonl"


def open_drawing_outputs(
    args: argparse.Namespace, stems: OutputStems, predictor: Predictor, stop_requested: Callable[[], bool]
) -> list[Output]:
    """Open the outputs that show people in their images."""
    draw = Drawer(with_trails=args.trails)
    outputs: list[Output] = []
    if args.output:
        outputs.append(DrawingOutput(stems.drawings, draw))
    if args.heatmaps:
        outputs.append(HeatmapOutput(stems.sheets, predictor, draw))
    if args.show:
        outputs.append(Window(draw, stop_requested))
    return outputs


class Drawer:
    """Draws people, once for all outputs."""

    def __init__(self, *, with_trails: bool) -> None:
        self._trails = Trails() if with_trails else None
        self._frame: Frame | None = None
        self._drawing: np.ndarray

    def __call__(self, frame: Frame, people: Sequence[Person]) -> np.ndarray:
        """See ``Draw``."""
        if frame is not self._frame:
            is_tracked = any(person.id is not None for person in people)
            colours: ColourScheme = "person" if is_tracked else "side"
            self._drawing = draw_people(frame.image, people, keypoint_min_score=KEYPOINT_MIN_SCORE, colours=colours)
            if self._trails:
                self._trails.draw(self._drawing, frame, people)
            self._frame = frame
        return self._drawing


class HeatmapOutput(Output):
    """Writes one sheet with all maps for every image or frame.

    The sheet of an image is a file. A video or a camera has a folder, with sheets named by frame number.
    """

    def __init__(
        self, stems: Mapping[Source, Path], predictor: Predictor, draw: Callable[[Frame, Sequence[Person]], np.ndarray]
    ) -> None:
        super().__init__()
        self._stems = stems
        self._predictor = predictor
        self._draw = draw

    def write(self, frame: Frame, people: Sequence[Person]) -> None:
        stem = self._stems[frame.source]
        path = with_suffix(stem, ".jpg") if frame.number is None else stem / f"{frame.number:06d}.jpg"
        maps = self._predictor.compute_maps(frame.image)
        write_image(path, draw_heatmap_sheet(frame.image, maps, self._predictor.skeleton, self._draw(frame, people)))


def sheet_suffixes(source: Source) -> list[str]:
    """Suffixes of what ``HeatmapOutput`` makes for a source; that of a folder is empty."""
    return {"image": [".jpg"], "animation": [".jpg", ""]}.get(source.kind, [""])
