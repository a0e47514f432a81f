"""Outputs of prediction: drawings as images and videos, and the names of files."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from posenet.files import name_file_in_errors
from posenet.images import WRITABLE_SUFFIXES, write_image
from posenet.inference.media import video
from posenet.inference.media.sources import FileSource, Frame, Source
from posenet.inference.media.video import VideoWriter
from posenet.inference.media.video_library import open_video_writer
from posenet.inference.person import Person

_log = logging.getLogger(__name__)


class Output(Protocol):
    """Receives every frame, in order, with its people and the drawing of them."""

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None: ...


def output_paths(sources: Sequence[Source], folder: Path, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
    """Choose an output path in ``folder`` for every source.

    An output has the name and the subfolder of its source, and the suffix that ``suffix_of`` returns. It is numbered if
    an earlier output has the same name.
    """
    paths: dict[Source, Path] = {}
    taken: set[str] = set()
    for source in sources:
        suffix = suffix_of(source)
        plain_name = source.stem + suffix
        numbered_names = (f"{source.stem}-{number}{suffix}" for number in itertools.count(2))
        # Photo.jpg and photo.jpg are the same file on some file systems.
        subfolder = source.subfolder if isinstance(source, FileSource) else Path()
        names = (subfolder / name for name in itertools.chain([plain_name], numbered_names))
        path = next(path for path in names if str(path).lower() not in taken)
        taken.add(str(path).lower())
        paths[source] = folder / path
        if source.kind != "camera" and path.name != plain_name:
            _log.info("The output of %s is named %s", source.name, path.name)
    return paths


def drawing_suffix(source: Source) -> str:
    """Suffix of a source's drawing: that of the source if the format can be written, else .png or .mp4."""
    if source.kind == "image":
        return source.suffix if source.suffix.lower() in WRITABLE_SUFFIXES else ".png"
    return source.suffix if source.suffix.lower() in video.WRITABLE_SUFFIXES else ".mp4"


class DrawingWriter:
    """Writes the drawings of each source to a file, as an image or as a video with a four-letter ``codec``.

    A video is finished when frames of another source arrive, or when the context ends. If it ends with an error, the
    video is discarded, and an earlier file of its name stays.

    Args:
        paths: where the drawing of each source goes.
        codec: of videos; None for the default of the video library.
    """

    def __init__(self, paths: Mapping[Source, Path], codec: str | None = None) -> None:
        self._paths = paths
        self._codec = codec
        self._video: VideoWriter | None = None
        self._video_source: Source | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        path = self._paths[frame.source]
        if frame.source != self._video_source:
            self.finish_source()
        if frame.number is None:
            with name_file_in_errors(path):
                write_image(path, drawing)
            return
        if self._video is None:
            opened = open_video_writer(
                path,
                drawing.shape[:2],
                frame.rate,
                aspect=frame.aspect,
                codec=self._codec,
                sound_from=_file_with_sound(frame.source),
            )
            self._video = self._stack.enter_context(opened)
            self._video_source = frame.source
        self._video.write(drawing, frame.seconds)

    def finish_source(self) -> None:
        """Complete the video of the source whose last frame was written."""
        self._stack.close()
        self._video = None
        self._video_source = None


def _file_with_sound(source: Source) -> Path | None:
    """The file of a source that may have sound."""
    if isinstance(source, FileSource) and source.suffix.lower() in video.VIDEO_SUFFIXES:
        return source.path
    return None
