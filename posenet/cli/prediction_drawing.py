"""Drawing predictions into files and into a window, as the flags of ``predict`` ask for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from posenet.cli.prediction_inputs import may_be_live
from posenet.devices.background import map_in_background
from posenet.errors import ConfigError
from posenet.inference.media.frame_prediction import FramePrediction
from posenet.inference.media.outputs import DrawingWriter, Output, drawing_suffix, output_paths
from posenet.inference.media.sources import Frame, Source
from posenet.inference.media.window import Window
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.shared_work import UnitItem
from posenet.visualization.people import Trails, draw_people
from posenet.visualization.sheets import HeatmapSheetWriter, heatmap_sheet_suffix


@dataclass(frozen=True)
class DrawingPaths:
    """Where the drawings and the heatmap sheets of each source go; see ``DrawingWriter`` and ``HeatmapSheetWriter``."""

    drawings: dict[Source, Path]
    sheets: dict[Source, Path]

    @classmethod
    def choose(cls, args: argparse.Namespace, sources: Sequence[Source]) -> Self:
        """Choose paths in the folders of the flags; none without these flags."""
        if args.output and args.heatmaps and Path(args.output).resolve() == Path(args.heatmaps).resolve():
            raise ConfigError("--heatmaps and --output give their files the same names; choose two folders")
        drawings = output_paths(sources, Path(args.output), drawing_suffix) if args.output else {}
        sheets = output_paths(sources, Path(args.heatmaps), heatmap_sheet_suffix) if args.heatmaps else {}
        return cls(drawings, sheets)

    @property
    def files(self) -> list[Path]:
        """All paths that are files, not folders."""
        return [*self.drawings.values(), *(path for source, path in self.sheets.items() if source.kind == "image")]


class FrameDrawer:
    """Writes drawings and heatmap sheets, and shows drawings in a window, as the flags ask for.

    Drawings are made and written on another thread, so that the network does not wait for them. Exceptions are a
    window, which belongs to the main thread; heatmaps, which need the network; and live sources, whose people must not
    wait for the next frame.

    Attributes:
        is_closed: whether the user has closed the window.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        predictor: Predictor,
        paths: DrawingPaths,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._args = args
        self._stack = contextlib.ExitStack()
        self._outputs: list[Output] = []
        self._drawings: DrawingWriter | None = None
        self._window: Window | None = None
        self._trails = Trails() if args.trails else None
        if args.output:
            self._drawings = self._stack.enter_context(DrawingWriter(paths.drawings, args.codec))
            self._outputs.append(self._drawings)
        if args.heatmaps:
            self._outputs.append(HeatmapSheetWriter(predictor, paths.sheets))
        if args.show:
            self._window = self._stack.enter_context(contextlib.closing(Window(stop_requested)))
            self._outputs.append(self._window)
        has_live_source = any(map(may_be_live, paths.drawings))
        self._in_background = bool(args.output) and not (args.heatmaps or args.show or has_live_source)
        self._num_ahead = predictor.settings.batch_size  # a batch is predicted while the last one is drawn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def is_closed(self) -> bool:
        return self._window is not None and self._window.closed

    def draw(
        self, items: Generator[UnitItem[FramePrediction], None, None]
    ) -> Generator[UnitItem[FramePrediction], None, None]:
        """Yield each item after it has been drawn, in order."""
        with contextlib.closing(items):
            if self._in_background:
                yield from map_in_background(self._draw_item, items, ahead=self._num_ahead)
            else:
                yield from map(self._draw_item, items)

    def _draw_item(self, item: UnitItem[FramePrediction]) -> UnitItem[FramePrediction]:
        prediction = item.item
        if prediction is None:
            self._finish_source()
        elif self._outputs and isinstance(prediction.frame, Frame):
            self._draw_frame(prediction.frame, prediction.people)
        return item

    def _draw_frame(self, frame: Frame, people: Sequence[Person]) -> None:
        is_tracked = any(person.id is not None for person in people)
        drawing = draw_people(
            frame.image,
            people,
            keypoint_min_score=self._args.keypoint_min_score,
            line_width=self._args.line_width,
            colours=self._args.colours or ("person" if is_tracked else "side"),
        )
        if self._trails:
            self._trails.draw(drawing, frame, people)
        for output in self._outputs:
            output.write(frame, people, drawing)

    def _finish_source(self) -> None:
        """Complete the video of the last source."""
        if self._drawings:
            self._drawings.finish_source()
