"""Files of people: COCO results as JSON, a COCO data set, and a CSV table. Each may also be standard output."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.errors import DataError
from posenet.files import is_standard_output, open_text_output, resolve_link
from posenet.images import oriented_size, read_header
from posenet.inference.media.sources import Frame, Source
from posenet.inference.result import Result
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton

Write = Callable[[Result], None]
"""Writes a result of an image that could be read. Results come in order."""
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
def write_json_lines(path: Path, sources: Iterable[Source]) -> Iterator[Write]:
    """COCO results, one person per line. The file is complete up to the last frame at any time; the first makes it."""
    ids = ImageIds(sources)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def open_file() -> TextIO:
            file = resolve_link(path)
            if file.is_file() and not is_standard_output(file):
                file.unlink()  # a hard link to it keeps its content
            return stack.enter_context(file.open("w", encoding="utf-8"))

        def write(result: Result) -> None:
            lines = [json.dumps(entry) + "\n" for entry in people_entries(result, ids)]
            open_file().writelines(lines)
            open_file().flush()

        yield write
        open_file()  # a share without images has an empty file


@contextlib.contextmanager
def write_json(path: Path, sources: Iterable[Source]) -> Iterator[Write]:
    """COCO results as one JSON list, one line for each person. Nothing is held in memory."""
    ids = ImageIds(sources)
    with open_text_output(path) as file:
        with _json_list(file) as append:

            def write(result: Result) -> None:
                for entry in people_entries(result, ids):
                    append(entry)
                file.flush()

            yield write
        file.write("\n")


@contextlib.contextmanager
def _json_list(file: TextIO) -> Iterator[Callable[[object], None]]:
    """Write a JSON list to a file, one line for each item; the function that this yields appends one."""
    is_empty = True

    def append(item: object) -> None:
        nonlocal is_empty
        file.write(("[\n" if is_empty else ",\n") + json.dumps(item))
        is_empty = False

    yield append
    file.write("[]" if is_empty else "\n]")


def people_entries(result: Result, ids: ImageIds) -> list[dict[str, Any]]:
    """People in COCO's results format, with the file name and, in a video, frame and time; with an id if tracked."""
    frame = result.frame
    entries = []
    for person in result:
        entry = person.to_coco_result(ids.id_of(frame)) | {"file_name": frame.source.name}
        if frame.number is not None:
            entry |= {"frame": frame.number, "time": round(frame.seconds, 4)}
        entries.append(entry if person.id is None else entry | {"id": person.id})
    return entries


@contextlib.contextmanager
def write_json_folder(paths: Mapping[Source, Path], sources: Iterable[Source]) -> Iterator[Write]:
    """For each image or video a file of its people, as ``write_json`` writes all of them into one.

    ``paths`` are those of ``output_paths``. A file is complete when results of another source arrive, or at the end.
    """
    ids = ImageIds(sources)
    current: Source | None = None
    append: Callable[[object], None]
    with contextlib.ExitStack() as stack:

        def write(result: Result) -> None:
            nonlocal current, append
            if result.frame.source != current:
                stack.close()  # completes the file of the last source
                current = result.frame.source
                file = stack.enter_context(open_text_output(paths[current]))
                stack.callback(file.write, "\n")
                append = stack.enter_context(_json_list(file))
            for entry in people_entries(result, ids):
                append(entry)

        yield write


def image_folder(sources: Iterable[Source]) -> Path:
    """The innermost folder that holds all files of the sources; ``DataError`` if they lie on two drives of Windows."""
    folders = [os.path.abspath(source.path.parent) for source in sources if source.path is not None]
    try:
        return Path(os.path.commonpath(folders or [os.getcwd()]))
    except ValueError as error:
        raise DataError("the images of a COCO data set must lie on one drive; write one data set for each") from error


class ListedNames:
    """The names of images in a COCO data set, relative to ``image_folder``; all are different.

    Frame 3 of clip.mp4 is listed as clip/000003.jpg.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        folder = image_folder(sources)
        self._file_of: dict[Source, str] = {}
        self._folder_of: dict[Source, str] = {}
        for source in sources:
            if source.path is not None and source.kind == "image":
                self._file_of[source] = Path(os.path.relpath(source.path, folder)).as_posix()
        taken = {*self._file_of.values(), *(Path(name).parent.as_posix() for name in self._file_of.values())}
        for source in sources:
            is_image = source.kind == "image"
            if is_image and source.path is not None:
                continue
            parent = Path() if source.path is None else Path(os.path.relpath(source.path.parent, folder))
            suffix = source.suffix if is_image else ""
            numbered = (f"{source.stem}-{number}{suffix}" for number in itertools.count(2))
            paths = ((parent / name).as_posix() for name in itertools.chain([source.stem + suffix], numbered))
            name = next(path for path in paths if path not in taken)
            taken.add(name)
            if is_image:
                self._file_of[source] = name
            else:
                self._folder_of[source] = name

    def name_of(self, frame: Frame) -> str:
        """The name of an image or a frame."""
        if frame.number is None:
            return self._file_of[frame.source]
        return f"{self._folder_of[frame.source]}/{frame.number:06d}.jpg"


@contextlib.contextmanager
def write_coco(
    path: Path, sources: Sequence[Source], skeleton: Skeleton, exif_frame: ExifFrame = DataConfig.exif_frame
) -> Iterator[Write]:
    """Images and people as a COCO data set, without holding them in memory; see docs/predicting.md.

    A person of whom only derived keypoints were found, such as the neck, has no keypoint that COCO knows and is left
    out.

    Args:
        sources: all sources, on which the names and ids of images depend.
        exif_frame: frame of the sizes and coordinates; with "stored", an EXIF rotation is undone.
    """
    names = ListedNames(sources)
    ids = ImageIds(sources)
    annotation_ids = itertools.count(1)
    with open_text_output(path) as file, tempfile.TemporaryFile("w+", encoding="utf-8") as images:
        category = json.dumps([_category(skeleton)])
        file.write(f'{{"info": {{"description": "People found by posenet"}}, "licenses": [], "categories": {category}')
        file.write(',\n"annotations": ')
        with _json_list(file) as append_annotation, _json_list(images) as append_image:

            def write(result: Result) -> None:
                frame = result.frame
                orientation = 1
                if exif_frame == "stored" and frame.number is None and frame.source.path is not None:
                    orientation = read_header(frame.source.path).orientation
                height, width = frame.size
                stored_height, stored_width = oriented_size(height, width, orientation)
                image: dict[str, Any] = {
                    "id": ids.next_number(frame),
                    "file_name": names.name_of(frame),
                    "height": stored_height,
                    "width": stored_width,
                }
                if frame.number is not None:
                    image |= {"video": frame.source.name, "frame": frame.number, "time": round(frame.seconds, 4)}
                append_image(image)
                for person in result:
                    keypoints = undo_orientation(person.to_coco().astype(float), (height, width), orientation)
                    if not keypoints[:, 2].any():
                        continue
                    entry = {"id": next(annotation_ids), "image_id": image["id"]} | _annotation(keypoints)
                    entry["score"] = person.score
                    append_annotation(entry if person.id is None else entry | {"track_id": person.id})

            yield write
        file.write(',\n"images": ')
        images.seek(0)
        shutil.copyfileobj(images, file)
        file.write("}\n")


def _category(skeleton: Skeleton) -> dict[str, Any]:
    """The entry of ``categories`` for a skeleton: COCO's own, or one with the lines that drawings have."""
    if skeleton.file_names == COCO.file_names:
        return COCO_CATEGORY
    number = {name: index for index, name in enumerate(skeleton.file_keypoints, 1)}
    lines = [[number[a], number[b]] for a, b in skeleton.drawn or skeleton.parts if a in number and b in number]
    return COCO_CATEGORY | {"keypoints": list(skeleton.file_names), "skeleton": lines}


def _annotation(keypoints: np.ndarray) -> dict[str, Any]:
    """An entry of ``annotations`` without its ids, for (F, 3) x, y and score in file order, at least one found."""
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
    """(F, 3) keypoints in the stored image, from those in the upright image of (height, width) ``image_size``."""
    height, width = image_size
    keypoints = keypoints.copy()
    if orientation in (2, 3, 6, 7):
        keypoints[:, 0] = width - 1 - keypoints[:, 0]
    if orientation in (3, 4, 7, 8):
        keypoints[:, 1] = height - 1 - keypoints[:, 1]
    return keypoints[:, [1, 0, 2]] if orientation >= 5 else keypoints


@contextlib.contextmanager
def write_csv(path: Path, skeleton: Skeleton) -> Iterator[Write]:
    """A table with one person per row; cells that do not apply are empty."""
    columns = ["file_name", "frame", "time", "id", "score", "left", "top", "right", "bottom"]
    for name in skeleton.file_keypoints:
        columns += [f"{name}_x", f"{name}_y", f"{name}_score"]
    with open_text_output(path) as file:
        rows = csv.writer(file)
        rows.writerow(columns)

        def write(result: Result) -> None:
            frame = result.frame
            time = "" if frame.number is None else round(frame.seconds, 4)
            number = "" if frame.number is None else frame.number
            for person in result:
                person_id = "" if person.id is None else person.id
                row: list[Any] = [frame.source.name, number, time, person_id, round(person.score, 4)]
                row += person.box.astype(float).round(3).tolist()
                for x, y, score in person.to_coco().astype(float).round(3).tolist():
                    row += [x, y, score] if score > 0 else ["", "", ""]
                rows.writerow(row)
            file.flush()

        yield write
