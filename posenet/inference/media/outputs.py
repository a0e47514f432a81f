"""Outputs of prediction: JSON files of people, and drawings as images and videos."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

import numpy as np

from posenet.files import atomic_replacement
from posenet.images import image_files
from posenet.inference.coco_evaluation import to_coco_result
from posenet.inference.media import video
from posenet.inference.media.sources import FileSource, Frame, Source
from posenet.inference.media.video import VideoWriter
from posenet.inference.media.video_library import open_video_writer
from posenet.inference.person import Person

_log = logging.getLogger(__name__)


class Output(Protocol):
    """Receives every frame, in order, with its people and the drawing of them."""

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None: ...


@contextlib.contextmanager
def open_people_file(path: Path) -> Iterator[Output]:
    """Open a file for people as COCO results; see ``people_entry`` for its entries.

    A ``.jsonl`` file is a ``JsonLinesWriter``. Any other file is a ``JsonListWriter``; it replaces an earlier file when
    the block ends without an error.
    """
    if path.suffix.lower() == ".jsonl":
        with open(path, "w", encoding="utf-8") as file:
            yield JsonLinesWriter(file)
        return
    with atomic_replacement(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        writer = JsonListWriter(file)
        yield writer
        writer.finish()


class JsonLinesWriter:
    """Writes one person per line. The file is complete up to the last frame at any time."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        for person in people:
            self._file.write(json.dumps(people_entry(frame, person)) + "\n")
        self._file.flush()


class JsonListWriter:
    """Writes all people as one JSON list, one line each, without holding them in memory."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_empty = True

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        for person in people:
            separator = "[\n" if self._is_empty else ",\n"
            self._file.write(separator + json.dumps(people_entry(frame, person)))
            self._is_empty = False

    def finish(self) -> None:
        """Close the list."""
        self._file.write("[]\n" if self._is_empty else "\n]\n")


def people_entry(frame: Frame, person: Person) -> dict[str, Any]:
    """A person in COCO's results format, with ``file_name`` and, in a video, ``frame`` and ``time`` in seconds.

    A tracked person also has its ``id``.

    The ``image_id`` of an image is the number that it is named by, as in COCO, else its path. In a video it is
    ``path#frame``, and from a camera ``camera N#frame``.
    """
    name = frame.source.name
    stem = frame.source.stem
    if frame.number is not None:
        entry = to_coco_result(person, f"{name}#{frame.number}")
        entry |= {"file_name": name, "frame": frame.number, "time": round(frame.seconds, 4)}
        return entry if person.id is None else entry | {"id": person.id}
    image_id = int(stem) if stem.isascii() and stem.isdecimal() else name
    return to_coco_result(person, image_id) | {"file_name": name}


def output_paths(sources: Sequence[Source], folder: Path, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
    """Choose an output path in ``folder`` for every source.

    An output has the name of its source and the suffix that ``suffix_of`` returns. It is numbered if an earlier output
    has the same name.
    """
    paths: dict[Source, Path] = {}
    taken: set[str] = set()
    for source in sources:
        suffix = suffix_of(source)
        plain_name = source.stem + suffix
        numbered_names = (f"{source.stem}-{number}{suffix}" for number in itertools.count(2))
        # Photo.jpg and photo.jpg are the same file on some file systems.
        name = next(name for name in itertools.chain([plain_name], numbered_names) if name.lower() not in taken)
        taken.add(name.lower())
        paths[source] = folder / name
        if source.kind != "camera" and name != plain_name:
            _log.info("The output of %s is named %s", source.name, name)
    return paths


def drawing_suffix(source: Source) -> str:
    """Suffix of a source's drawing: that of the source if the format can be written, else .png or .mp4."""
    if source.kind == "image":
        return source.suffix if source.suffix.lower() in image_files.WRITABLE_SUFFIXES else ".png"
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
            self._stack.close()
            self._video = None
        if frame.number is None:
            image_files.write_image(path, drawing)
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


def _file_with_sound(source: Source) -> Path | None:
    """The file of a source that may have sound."""
    if isinstance(source, FileSource) and source.suffix.lower() in video.VIDEO_SUFFIXES:
        return source.path
    return None
