"""Import the JSON export of Label Studio: tasks with rectangles and keypoints.

The export in COCO's format joins the keypoints of all people of an image, so it is of use only for images of one
person. The JSON export keeps the rectangle of every keypoint in ``parentID``. Coordinates are percentages of the
displayed image.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from posenet.annotations.coco import read_document
from posenet.annotations.importing.imported import ImportedAnnotations, ImportedPerson, to_coco
from posenet.errors import DataError
from posenet.images import find_images, read_header
from posenet.messages import to_single_line, truncate_for_message
from posenet.skeleton import COCO

NO_RECTANGLE = "person"
"""Category of people without a rectangle."""
MARGIN = 0.1
"""A keypoint in no rectangle counts as inside one that it is at most this share of its sides away from."""
SHAPE_MARGIN = 0.02
"""Largest difference of two ratios of width and height, relative to one of them, that rounding explains."""

_NO_PERSON = "keypoints that belong to no rectangle, left out: move them into their rectangle in the list of regions"
_REPEATED = "keypoints that their person has already, left out: delete those that are wrong"
_OTHER_SHAPE = "tasks with another shape than the image of this name in the folder, left out: it is another image"
_Region = Mapping[str, Any]


@dataclass
class _Person:
    """One person of a task; coordinates are percentages."""

    category: str
    box: tuple[float, float, float, float] | None  # x, y, width, height
    points: dict[str, tuple[float, float]] = field(default_factory=dict)

    def contains(self, value: Mapping[str, Any], margin: float = 0.0) -> bool:
        """Whether a point is in the rectangle, extended by a share of its sides; always true without a rectangle."""
        if self.box is None:
            return True
        x, y, width, height = self.box
        is_between = -margin * width <= float(value["x"]) - x <= (1 + margin) * width
        return is_between and -margin * height <= float(value["y"]) - y <= (1 + margin) * height

    def add_point(self, region: _Region, left_out: Counter[str]) -> None:
        """Add a point, or count it if the person has this keypoint already."""
        value = region["value"]
        name = str(value["keypointlabels"][0])
        if name in self.points:
            left_out[_REPEATED] += 1
        else:
            self.points[name] = float(value["x"]), float(value["y"])

    def convert(self, category_id: int, names: Sequence[str]) -> ImportedPerson:
        """The person with the keypoints of these names, in their order."""
        keypoints = np.zeros((len(names), 3))
        for index, name in enumerate(names):
            if name in self.points:
                keypoints[index] = *self.points[name], 2
        return ImportedPerson(category_id, keypoints, self.box)


def import_label_studio(
    path: str | Path, images: str | Path, keypoints: Sequence[str] | None = None
) -> ImportedAnnotations:
    """Read a JSON export of Label Studio; ``DataError`` if the file is none, or has no image of the folder.

    Args:
        images: folder of the images, which are found by their names at any depth.
        keypoints: names of the keypoints in order; None takes COCO's if it has all names, or else the order in which
            they first appear.
    """
    tasks = read_document(path)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise DataError(f"{path} is not a list of tasks; export the project from Label Studio as JSON")
    files = _index_files(Path(images))
    left_out: Counter[str] = Counter()
    people_of: dict[Path, list[_Person]] = {}
    for number, task in enumerate(tasks, start=1):
        try:
            people = _read_people(task, left_out)
            file = _find_file(task["data"], files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {to_single_line(str(error))}"
            raise DataError(f"{path}: task {number} cannot be read ({reason}); export the project again") from error
        if people is None:
            continue
        if file is None:
            left_out["tasks whose image is not in the folder, left out"] += 1
        elif not _has_annotated_shape(file, task):
            left_out[_OTHER_SHAPE] += 1
        elif file in people_of:
            left_out["tasks with the image of an earlier task, left out"] += 1
        else:
            people_of[file] = people
    if not people_of:
        reasons = "; ".join(f"{kind}: {count}" for kind, count in left_out.items()) or "it has no tasks"
        raise DataError(f"{path} has no annotated image of {images} ({reasons}); check --images")
    everybody = [person for people in people_of.values() for person in people]
    names = _keypoint_names(everybody, keypoints)
    if unknown := sum(name not in names for person in everybody for name in person.points):
        left_out["keypoints with other names than --keypoints, left out"] = unknown
    categories = {name: number for number, name in enumerate(dict.fromkeys(person.category for person in everybody), 1)}
    converted = {
        path: [person.convert(categories[person.category], names) for person in people]
        for path, people in people_of.items()
    }
    notes = [f"{kind}: {count}" for kind, count in left_out.items()]
    return to_coco(converted, {number: name for name, number in categories.items()}, names, 100, notes)


def _index_files(folder: Path) -> dict[str, Path]:
    """The images of a folder by file name; names of several files are not listed."""
    paths = find_images([folder], recursive=True)
    counts = Counter(path.name for path in paths)
    return {path.name: path for path in paths if counts[path.name] == 1}


def _find_file(data: Mapping[str, Any], files: Mapping[str, Path]) -> Path | None:
    """The file of a task, whose data name it by a path or an address.

    Label Studio puts eight digits and a hyphen before the names of uploaded files.
    """
    for value in data.values():
        if not isinstance(value, str):
            continue
        name = _file_name(value)
        for candidate in (name, re.sub(r"^[0-9a-f]{8}-", "", name)):
            if candidate in files:
                return files[candidate]
    return None


def _file_name(value: str) -> str:
    """The file name in a path or in an address, such as /data/local-files/?d=a/1.jpg or ...?fileuri=<base64>."""
    try:
        address = urlsplit(value)
    except ValueError:
        return value
    query = parse_qs(address.query)
    path = unquote(address.path)
    if "d" in query:
        path = query["d"][0]
    elif "fileuri" in query:
        try:
            path = base64.urlsafe_b64decode(query["fileuri"][0]).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return PureWindowsPath(PurePosixPath(path).name).name


def _has_annotated_shape(file: Path, task: Mapping[str, Any]) -> bool:
    """Whether an image has the sides that Label Studio has noted, or others of the same ratio; true if it noted none.

    It notes the sides of some turned photographs as stored, though the coordinates are those of the displayed image.
    """
    regions = next(entry for entry in task["annotations"] if not entry.get("was_cancelled"))["result"]
    sides = next((pair for region in regions if all(pair := (_side(region, "width"), _side(region, "height")))), None)
    if sides is None:
        return True
    height, width = read_header(file).displayed_size
    return any(abs(width * y - height * x) <= SHAPE_MARGIN * height * x for x, y in (sides, sides[::-1]))


def _side(region: _Region, name: str) -> float:
    """A side of the image in pixels as Label Studio has noted it; 0 if it has not."""
    value = region.get(f"original_{name}")
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else 0.0


def _read_people(task: Mapping[str, Any], left_out: Counter[str]) -> list[_Person] | None:
    """The people of a task; None if it cannot be used. Regions of other kinds are ignored."""
    annotations = [entry for entry in task.get("annotations") or [] if not entry.get("was_cancelled")]
    if not annotations:
        left_out["tasks without an annotation, left out"] += 1
        return None
    if len(annotations) > 1:
        left_out["tasks with several annotations, of which the first is used"] += 1
    regions = annotations[0]["result"]
    if any(region.get("image_rotation") for region in regions):
        left_out["tasks with an image that was rotated in Label Studio, left out: rotate the file instead"] += 1
        return None
    people: dict[object, _Person] = {}
    for region in regions:
        if region.get("type") == "rectanglelabels":
            labels = region["value"].get("rectanglelabels") or [NO_RECTANGLE]
            people[region["id"]] = _Person(str(labels[0]), _rectangle(region))
    points = [region for region in regions if region.get("type") == "keypointlabels"]
    loose = []
    for region in points:
        if region.get("parentID") in people:
            people[region["parentID"]].add_point(region, left_out)
        else:
            loose.append(region)
    if loose and not people:
        people[None] = _Person(NO_RECTANGLE, None)
    for region in loose:
        # Without a parent, a point belongs to the only rectangle around it.
        value = region["value"]
        candidates = [person for person in people.values() if person.contains(value)]
        candidates = candidates or [person for person in people.values() if person.contains(value, MARGIN)]
        if len(candidates) == 1:
            candidates[0].add_point(region, left_out)
        else:
            left_out[_NO_PERSON] += 1
    return list(people.values())


def _rectangle(region: _Region) -> tuple[float, float, float, float]:
    """x, y, width, height around a rectangle, which may be rotated about its first corner; percentages."""
    value = region["value"]
    x, y, width, height = (float(value[key]) for key in ("x", "y", "width", "height"))
    angle = np.radians(float(value.get("rotation") or 0))
    # Percentages of both axes differ in pixels, so the rotation needs the shape of the image.
    aspect = float(region.get("original_width") or 1) / float(region.get("original_height") or 1)
    corners = np.array([(0, 0), (width * aspect, 0), (width * aspect, height), (0, height)])
    turned = corners @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    low = turned.min(axis=0)
    size = turned.max(axis=0) - low
    return x + float(low[0]) / aspect, y + float(low[1]), float(size[0]) / aspect, float(size[1])


def _keypoint_names(people: Sequence[_Person], keypoints: Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name for person in people for name in person.points))
    names = tuple(keypoints or (COCO.file_names if set(found) <= set(COCO.file_names) else found))
    if len(set(names)) < len(names):
        raise DataError(f"--keypoints names a keypoint twice: {truncate_for_message(names)}")
    return names
