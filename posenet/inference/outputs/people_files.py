"""Files of people: COCO results as JSON, a COCO data set, and a CSV table, which may also be standard output.

The ``.jsonl`` file has a line for each image, also for one without people. It shows what is done.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.errors import DataError
from posenet.files import name_file_in_errors, name_numbers, open_output, open_text_output
from posenet.inference.media.sources import Source
from posenet.inference.result import Result
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import twins

Record = dict[str, Any]
"""An image or a frame, and the people in it, in types of JSON; see ``record_of``."""
Write = Callable[[Source, Record], None]
"""Writes the record of an image that could be read. Records come in order."""
MAX_IMAGE_NUMBER = 2**53
"""Larger numbers are not image ids: many JSON readers round them."""


def image_numbers(sources: Iterable[Source]) -> dict[Source, int]:
    """The numbers that images are named by, as in COCO; only of images whose number no other one has."""
    stems = {source: source.stem for source in sources if source.kind == "image"}
    numbers = {source: int(stem) for source, stem in stems.items() if stem.isascii() and stem.isdecimal()}
    count = Counter(numbers.values())
    return {source: number for source, number in numbers.items() if number < MAX_IMAGE_NUMBER and count[number] == 1}


def record_of(result: Result, numbers: Mapping[Source, int]) -> Record:
    """The image that was read, its size in pixels, and its people in COCO's results format, each with its box.

    The ``image_id`` of an image is its number in ``numbers`` (``image_numbers``), else its path; that of a frame is
    ``path#frame``, or ``camera N#frame``. No two are equal.
    """
    frame = result.frame
    name = frame.source.name
    image_id = numbers.get(frame.source, name) if frame.number is None else f"{name}#{frame.number}"
    height, width = frame.size
    people = []
    for person in result:
        entry = person.to_coco_result(image_id, person.skeleton.category_id)
        entry["box"] = person.box.astype(float).round(3).tolist()
        if person.skeleton.category != COCO.category:
            entry["category"] = person.skeleton.category
        if person.id is not None:
            entry["id"] = person.id
        people.append(entry)
    moment = {} if frame.number is None else {"frame": frame.number, "time": round(frame.seconds, 4)}
    about = {"image_id": image_id, "file_name": name, **moment}
    return about | {"height": height, "width": width, "people": people}


@contextlib.contextmanager
def write_json(path: Path) -> Iterator[Write]:
    """COCO results as one JSON list, one line for each person. Nothing is held in memory.

    A person has also the file name, in a video the frame and the time, the id if it is tracked, and the name of the
    category if that is not a person.
    """
    with open_text_output(path) as file:
        before = "[\n"

        def write(source: Source, record: Record) -> None:
            nonlocal before
            about = {name: record[name] for name in ("file_name", "frame", "time") if name in record}
            for person in record["people"]:
                entry = {name: value for name, value in person.items() if name not in ("box", "id")} | about
                file.write(before + json.dumps(entry | {"id": person["id"]} if "id" in person else entry))
                before = ",\n"
            file.flush()

        yield write
        file.write("[]\n" if before == "[\n" else "\n]\n")


def listed_names(sources: Iterable[Source]) -> dict[Source, str]:
    """The names of sources in a COCO data set, relative to the innermost folder that holds all; all are different.

    That of a video is the folder of its frames: frame 3 of clip.mp4 is listed as clip/000003.jpg.
    """
    folders = [os.path.abspath(source.path.parent) for source in sources if source.path is not None]
    folder = os.path.commonpath(folders or [os.getcwd()])
    names: dict[Source, str] = {}
    taken: set[str] = set()
    # Image files keep their names: they come first.
    for source in sorted(sources, key=lambda source: source.kind != "image" or source.path is None):
        path = Path() if source.path is None else Path(os.path.relpath(source.path, folder))
        if source.kind == "image" and source.path is not None:
            name = path.as_posix()
            taken.add(path.parent.as_posix())
        else:
            suffix = source.suffix if source.kind == "image" else ""
            candidates = ((path.parent / f"{source.stem}{number}{suffix}").as_posix() for number in name_numbers())
            name = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(name)
        names[source] = name
    return names


@contextlib.contextmanager
def write_coco(path: Path, sources: Sequence[Source], skeleton: Skeleton) -> Iterator[Write]:
    """Images and people as a COCO data set, written at the end; see docs/predicting.md.

    A person of whom only derived keypoints were found, such as the neck, has no keypoint that COCO knows and is left
    out.
    """
    names = listed_names(sources)
    numbers = image_numbers(sources)
    taken = set(numbers.values())
    free_numbers = (number for number in itertools.count(1) if number not in taken)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []

    def write(source: Source, record: Record) -> None:
        image_id = numbers[source] if source in numbers else next(free_numbers)
        image = {"id": image_id, "file_name": names[source], "height": record["height"], "width": record["width"]}
        if (number := record.get("frame")) is not None:
            image["file_name"] += f"/{number:06d}.jpg"
            image |= {"video": source.name, "frame": number, "time": record["time"]}
        images.append(image)
        for person in record["people"]:
            keypoints = np.reshape(person["keypoints"], (-1, 3))
            if keypoints[:, 2].any():
                entry = {"id": len(annotations) + 1, "image_id": image_id, "category_id": person["category_id"]}
                entry |= _annotation(keypoints) | {"score": person["score"]}
                annotations.append(entry | {"track_id": person["id"]} if "id" in person else entry)

    with open_text_output(path) as file:
        yield write
        about = {"description": "People found by posenet"}
        document = {"info": about, "licenses": [], "categories": [_category(skeleton)]}
        json.dump(document | {"annotations": annotations, "images": images}, file)
        file.write("\n")


def _category(skeleton: Skeleton) -> dict[str, Any]:
    """The entry of ``categories`` for a skeleton: COCO's own, or one with the lines that drawings have."""
    if skeleton.file_names == COCO.file_names and skeleton.category == COCO.category:
        return COCO_CATEGORY | {"id": skeleton.category_id}
    names = list(skeleton.file_keypoints)
    twin = twins(skeleton.left_right)
    return {
        "supercategory": skeleton.category,
        "id": skeleton.category_id,
        "name": skeleton.category,
        "keypoints": list(skeleton.file_names),
        "skeleton": edges_of(skeleton),
        "flip_idx": [names.index(twin.get(name, name)) for name in names],
    }


def edges_of(skeleton: Skeleton) -> list[list[int]]:
    """The lines that drawings have between keypoints of annotation files, in the numbers of these, from 1."""
    number = {name: index for index, name in enumerate(skeleton.file_keypoints, 1)}
    return [[number[a], number[b]] for a, b in skeleton.drawn or skeleton.parts if a in number and b in number]


def _annotation(keypoints: np.ndarray) -> dict[str, Any]:
    """An entry of ``annotations`` without its ids, for (F, 3) x, y and score in file order, at least one found."""
    found = keypoints[:, 2] > 0
    left, top = keypoints[found, :2].min(axis=0)
    width, height = np.maximum(np.ptp(keypoints[found, :2], axis=0), 1)  # many tools refuse empty boxes
    visible = np.where(found[:, None], keypoints * (1, 1, 0) + (0, 0, 2), 0)
    return {
        "iscrowd": 0,
        "bbox": np.round([left, top, width, height], 3).tolist(),
        "area": round(float(width * height), 3),
        "segmentation": [],
        "num_keypoints": int(found.sum()),
        "keypoints": visible.round(3).ravel().tolist(),
        "keypoint_scores": keypoints[:, 2].round(3).tolist(),
    }


@contextlib.contextmanager
def write_csv(path: Path, skeleton: Skeleton) -> Iterator[Write]:
    """A table with one person per row; cells that do not apply are empty."""
    columns = ["file_name", "frame", "time", "id", "score", "left", "top", "right", "bottom"]
    for name in skeleton.file_keypoints:
        columns += [f"{name}_x", f"{name}_y", f"{name}_score"]
    with open_text_output(path) as file:
        rows = csv.writer(file)
        rows.writerow(columns)

        def write(source: Source, record: Record) -> None:
            for person in record["people"]:
                row = [source.name, record.get("frame", ""), record.get("time", ""), person.get("id", "")]
                row += [round(person["score"], 4), *person["box"]]
                for x, y, score in np.reshape(person["keypoints"], (-1, 3)).tolist():
                    row += [x, y, score] if score > 0 else ["", "", ""]
                rows.writerow(row)
            file.flush()

        yield write


class LinesFile:
    """Appends a line for each image and frame, and one after the last frame of a video, with their number.

    Each line is written at once, so that a kill can only cut the last one.

    Args:
        resume: keep the lines that an earlier run has written, and continue after them.

    Attributes:
        done: the names of the inputs that are complete, with the error of a video that could only be read in part.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.done: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._file: io.FileIO | None = None
        self._resume = resume and path.is_file()
        for _, record in self._lines() if self._resume else ():
            if "frame" not in record:
                self.done[record["file_name"]] = record.get("error", "")

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Within this context lines can be written. The first one makes the file, and so does the end without an error.

        The lines of a video that is not complete are removed: it is predicted again from its beginning.
        """
        if self._resume:
            with open_output(self.path) as file:
                file.writelines(line for line, record in self._lines() if record["file_name"] in self.done)
        with self._stack:
            yield
            self._opened()

    def write(self, record: Record) -> None:
        """Append the record of an image or of a frame, or that all frames of a video are there."""
        with name_file_in_errors(self.path):
            self._opened().write(json.dumps(record).encode() + b"\n")

    def records(self, sources: Iterable[Source]) -> Iterator[tuple[Source, Record]]:
        """The images and frames in the file, in the order of their sources."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        place = 0
        for line, record in self._lines():
            if "people" in record:
                places[record["file_name"]].append(place)
            place += len(line)
        with open(self.path, "rb") as file:
            for source in sources:
                for place in places[source.name]:
                    file.seek(place)
                    yield source, json.loads(file.readline())

    def _opened(self) -> io.FileIO:
        if self._file is None:
            if not self._resume and self.path.is_file():
                self.path.unlink()  # a hard link to it keeps its content
            self._file = self._stack.enter_context(io.FileIO(self.path, "a"))
        return self._file

    def _lines(self) -> Iterator[tuple[bytes, Record]]:
        """The lines and what they say; without a last one that was cut."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    record = json.loads(line)
                    is_known = isinstance(record["file_name"], str) and record.keys() & {"people", "frames"}
                except (ValueError, RecursionError, TypeError, KeyError):
                    is_known = False
                if not is_known:
                    raise DataError(
                        f"line {number} of {self.path} is not one of a prediction that can be continued; choose "
                        "another name, or start again without --resume"
                    )
                yield line, record
