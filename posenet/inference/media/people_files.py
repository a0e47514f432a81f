"""Files of people: COCO results as JSON, a COCO data set, and a CSV table. Each may also be standard output."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.errors import DataError
from posenet.files import open_text_output
from posenet.images import oriented_size, read_header
from posenet.inference.coco_evaluation import to_coco_result
from posenet.inference.media.outputs import Output
from posenet.inference.media.sources import FileSource, Frame, Source
from posenet.inference.person import Person
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton

MAX_IMAGE_NUMBER = 2**53
"""Larger numbers are not image ids: many JSON readers round them."""


class ImageIds:
    """The ``image_id`` of every image and frame of some sources; no two are equal.

    That of an image is the number that it is named by, as in COCO, if no other image has that number, else its path.
    That of a frame is ``path#frame``, or ``camera N#frame``.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        numbers = {source: _number_in_name(source) for source in sources}
        count = Counter(numbers.values())
        self._numbers = {
            source: number for source, number in numbers.items() if number is not None and count[number] == 1
        }
        taken = set(self._numbers.values())
        self._free_numbers = (number for number in itertools.count(1) if number not in taken)

    def id_of(self, frame: Frame) -> int | str:
        """The number or text for COCO results."""
        if frame.number is not None:
            return f"{frame.source.name}#{frame.number}"
        return self._numbers.get(frame.source, frame.source.name)

    def next_number(self, frame: Frame) -> int:
        """The number for a COCO data set: the ``image_id`` if it is a number, else the lowest one that is free."""
        image_id = self.id_of(frame)
        return image_id if isinstance(image_id, int) else next(self._free_numbers)


def _number_in_name(source: Source) -> int | None:
    stem = source.stem
    is_number = source.kind == "image" and stem.isascii() and stem.isdecimal()
    return int(stem) if is_number and int(stem) < MAX_IMAGE_NUMBER else None


@contextlib.contextmanager
def open_people_file(path: Path, sources: Iterable[Source] = (), append: bool = False) -> Iterator[Output]:
    """Open a file for people as COCO results; see ``people_entry`` for its entries.

    A ``.jsonl`` file is a ``JsonLinesWriter``. Any other file is a ``JsonListWriter``; it replaces an earlier file when
    the block ends without an error.

    Args:
        append: continue a ``.jsonl`` file.
    """
    ids = ImageIds(sources)
    if path.suffix.lower() == ".jsonl":
        with contextlib.ExitStack() as stack:

            def open_file() -> TextIO:
                if append:
                    return stack.enter_context(open(path, "a", encoding="utf-8"))
                return stack.enter_context(open(path, "w", encoding="utf-8"))

            yield JsonLinesWriter(open_file, ids)
        return
    with open_text_output(path) as file:
        writer = JsonListWriter(file, ids)
        yield writer
        writer.finish()


class JsonLinesWriter:
    """Writes one person per line. The file is complete up to the last frame at any time; the first frame makes it.

    Args:
        open_file: called once.
    """

    def __init__(self, open_file: Callable[[], TextIO], ids: ImageIds) -> None:
        self._open_file = open_file
        self._ids = ids
        self._file: TextIO | None = None

    @property
    def size(self) -> int | None:
        """Size of the file in bytes; None before the first frame."""
        return None if self._file is None else os.fstat(self._file.fileno()).st_size

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        if self._file is None:
            self._file = self._open_file()
        for person in people:
            self._file.write(json.dumps(people_entry(frame, person, self._ids.id_of(frame))) + "\n")
        self._file.flush()


class JsonListWriter:
    """Writes all people as one JSON list, one line each, without holding them in memory."""

    def __init__(self, file: TextIO, ids: ImageIds) -> None:
        self._list = _JsonList(file)
        self._ids = ids

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        for person in people:
            self._list.append(people_entry(frame, person, self._ids.id_of(frame)))
        self._list.file.flush()

    def finish(self) -> None:
        """Close the list."""
        self._list.finish()
        self._list.file.write("\n")


class _JsonList:
    """A JSON list in a file, one line for each item."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._is_empty = True

    def append(self, item: object) -> None:
        self.file.write(("[\n" if self._is_empty else ",\n") + json.dumps(item))
        self._is_empty = False

    def finish(self) -> None:
        self.file.write("[]" if self._is_empty else "\n]")


def people_entry(frame: Frame, person: Person, image_id: int | str) -> dict[str, Any]:
    """A person in COCO's results format, with ``file_name`` and, in a video, ``frame``, ``time`` in seconds and ``id``.

    Only a tracked person has an ``id``.
    """
    entry = to_coco_result(person, image_id) | {"file_name": frame.source.name}
    if frame.number is not None:
        entry |= {"frame": frame.number, "time": round(frame.seconds, 4)}
    return entry if person.id is None else entry | {"id": person.id}


@contextlib.contextmanager
def open_coco_file(
    path: Path, sources: Sequence[Source], skeleton: Skeleton, exif_frame: ExifFrame = DataConfig.exif_frame
) -> Iterator[Output]:
    """Open a COCO data set; it replaces an earlier file when the block ends without an error. See ``CocoWriter``."""
    with open_text_output(path) as file, tempfile.TemporaryFile("w+", encoding="utf-8") as images:
        names = listed_names(sources, image_folder(sources))
        writer = CocoWriter(file, images, names, ImageIds(sources), skeleton, exif_frame)
        yield writer
        writer.finish()


def image_folder(sources: Iterable[Source]) -> Path:
    """The innermost folder that holds all files of the sources; the file names of a COCO data set are relative to it.

    Raises:
        DataError: there is none, as on two drives of Windows.
    """
    folders = [os.path.abspath(source.path.parent) for source in sources if isinstance(source, FileSource)]
    try:
        return Path(os.path.commonpath(folders or [os.getcwd()]))
    except ValueError as error:
        raise DataError("the images of a COCO data set must lie on one drive; write one data set for each") from error


def listed_names(sources: Sequence[Source], folder: Path) -> dict[Source, str]:
    """The file name of each image in a COCO data set, and the folder of each source with frames; all are different.

    An image file has its path relative to ``folder``. Frame 3 of clip.mp4 is listed as clip/000003.jpg.
    """
    names: dict[Source, str] = {}
    for source in sources:
        if isinstance(source, FileSource) and source.kind == "image":
            names[source] = Path(os.path.relpath(source.path, folder)).as_posix()
    taken = {*names.values(), *(Path(name).parent.as_posix() for name in names.values())}
    for source in sources:
        if source in names:
            continue
        parent = Path(os.path.relpath(source.path.parent, folder)) if isinstance(source, FileSource) else Path()
        suffix = source.suffix if source.kind == "image" else ""
        numbered = (f"{source.stem}-{number}{suffix}" for number in itertools.count(2))
        paths = ((parent / name).as_posix() for name in itertools.chain([source.stem + suffix], numbered))
        names[source] = next(path for path in paths if path not in taken)
        taken.add(names[source])
    return names


class CocoWriter:
    """Writes images and people as a COCO data set, without holding them in memory.

    Every image that was read has an entry, also one without people. A keypoint that was found has visibility 2, a
    ``score`` of a person and ``keypoint_scores`` come on top of COCO's format. The box is that around the keypoints,
    and the area is the area of the box, as pycocotools computes both for results.

    Sizes and coordinates are those of the displayed image, as in labelling tools. With the frame "stored", an EXIF
    rotation is undone. ``build_hdf5`` and ``evaluate`` read both; see ``find_annotated_frame``.

    Args:
        file: receives the data set.
        images: an empty temporary file.
        names: see ``listed_names``.
        exif_frame: frame of the sizes and coordinates.
    """

    def __init__(
        self,
        file: TextIO,
        images: TextIO,
        names: dict[Source, str],
        ids: ImageIds,
        skeleton: Skeleton,
        exif_frame: ExifFrame,
    ) -> None:
        self._exif_frame = exif_frame
        self._names = names
        self._ids = ids
        self._images = _JsonList(images)
        self._annotations = _JsonList(file)
        self._annotation_ids = itertools.count(1)
        category = json.dumps([coco_category(skeleton)])
        file.write(f'{{"info": {{"description": "People found by posenet"}}, "licenses": [], "categories": {category}')
        file.write(',\n"annotations": ')

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        orientation = 1
        if self._exif_frame == "stored" and frame.number is None and isinstance(frame.source, FileSource):
            orientation = read_header(frame.source.path).orientation
        height, width = frame.image.shape[:2]
        stored_height, stored_width = oriented_size(height, width, orientation)
        image: dict[str, Any] = {
            "id": self._ids.next_number(frame),
            "file_name": self._file_name(frame),
            "height": stored_height,
            "width": stored_width,
        }
        if frame.number is not None:
            image |= {"video": frame.source.name, "frame": frame.number, "time": round(frame.seconds, 4)}
        self._images.append(image)
        for person in people:
            keypoints = undo_orientation(person.to_coco().astype(float), (height, width), orientation)
            entry = {"id": next(self._annotation_ids), "image_id": image["id"]} | coco_annotation(keypoints)
            entry["score"] = person.score
            if person.id is not None:
                entry["track_id"] = person.id
            self._annotations.append(entry)

    def _file_name(self, frame: Frame) -> str:
        name = self._names[frame.source]
        return name if frame.number is None else f"{name}/{frame.number:06d}.jpg"

    def finish(self) -> None:
        """Append the list of images."""
        file = self._annotations.file
        self._annotations.finish()
        self._images.finish()
        file.write(',\n"images": ')
        self._images.file.seek(0)
        shutil.copyfileobj(self._images.file, file)
        file.write("}\n")


def coco_category(skeleton: Skeleton) -> dict[str, Any]:
    """The entry of ``categories`` for a skeleton: COCO's own, or one with the lines that drawings have."""
    if skeleton.file_names == COCO.file_names:
        return COCO_CATEGORY
    number = {name: index for index, name in enumerate(skeleton.file_keypoints, 1)}
    lines = [[number[a], number[b]] for a, b in skeleton.drawn or skeleton.parts if a in number and b in number]
    return COCO_CATEGORY | {"keypoints": list(skeleton.file_names), "skeleton": lines}


def coco_annotation(keypoints: np.ndarray) -> dict[str, Any]:
    """An entry of ``annotations`` without its ids.

    Args:
        keypoints: (F, 3) x, y and score in the order of the annotation file, at least one of them found.
    """
    found = keypoints[:, 2] > 0
    left, top = keypoints[found, :2].min(axis=0)
    width, height = np.maximum(np.ptp(keypoints[found, :2], axis=0), 1)  # many tools refuse empty boxes
    visible = np.where(found[:, None], keypoints * (1, 1, 0) + (0, 0, 2), 0)
    return {
        "category_id": COCO_CATEGORY["id"],
        "iscrowd": 0,
        "bbox": np.round([left, top, width, height], 3).tolist(),
        "area": round(float(width * height), 3),
        "segmentation": [],
        "num_keypoints": int(found.sum()),
        "keypoints": visible.round(3).ravel().tolist(),
        "keypoint_scores": keypoints[:, 2].round(3).tolist(),
    }


def undo_orientation(keypoints: np.ndarray, image_size: tuple[int, int], orientation: int) -> np.ndarray:
    """Keypoints in the image as stored.

    Args:
        keypoints: (F, 3) x, y and score in the upright image.
        image_size: (height, width) of the upright image.
        orientation: EXIF orientation, 1-8.
    """
    height, width = image_size
    keypoints = keypoints.copy()
    if orientation in (2, 3, 6, 7):
        keypoints[:, 0] = width - 1 - keypoints[:, 0]
    if orientation in (3, 4, 7, 8):
        keypoints[:, 1] = height - 1 - keypoints[:, 1]
    return keypoints[:, [1, 0, 2]] if orientation >= 5 else keypoints


@contextlib.contextmanager
def open_csv_file(path: Path, skeleton: Skeleton) -> Iterator[Output]:
    """Open a CSV table; it replaces an earlier file when the block ends without an error. See ``CsvWriter``."""
    with open_text_output(path) as file:
        yield CsvWriter(file, skeleton)


class CsvWriter:
    """Writes one person per row: file, frame, time, id, score, box, and x, y and score of every keypoint.

    Cells that do not apply are empty: frame and time of an image, the id of a person who is not tracked, and a keypoint
    that was not found.
    """

    def __init__(self, file: TextIO, skeleton: Skeleton) -> None:
        self._file = file
        self._rows = csv.writer(file)
        columns = ["file_name", "frame", "time", "id", "score", "left", "top", "right", "bottom"]
        for name in skeleton.file_names:
            columns += [f"{name}_x", f"{name}_y", f"{name}_score"]
        self._rows.writerow(columns)

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        time = "" if frame.number is None else round(frame.seconds, 4)
        number = "" if frame.number is None else frame.number
        for person in people:
            person_id = "" if person.id is None else person.id
            row: list[Any] = [frame.source.name, number, time, person_id, round(person.score, 4)]
            row += person.box().astype(float).round(3).tolist()
            for x, y, score in person.to_coco().astype(float).round(3).tolist():
                row += [x, y, score] if score > 0 else ["", "", ""]
            self._rows.writerow(row)
        self._file.flush()
