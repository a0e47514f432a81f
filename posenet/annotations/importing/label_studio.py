"""Import the JSON export of Label Studio: tasks with rectangles and keypoints.

The export in COCO's format joins the keypoints of all people of an image, so it is of use only for images of one
person. The JSON export keeps the rectangle of every keypoint in ``parentID``. Coordinates are percentages of the
displayed image.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from posenet.annotations.coco import read_document, refuse_labelme
from posenet.annotations.importing.imported import FEW, ImportedAnnotations, ImportedPerson, Notes, are_few, to_coco
from posenet.errors import DataError
from posenet.images import find_images, read_header
from posenet.messages import pluralize, to_single_line, truncate_for_message
from posenet.skeleton import COCO

NO_RECTANGLE = "person"
"""Category of people without a rectangle."""
MARGIN = 0.1
"""A keypoint in no rectangle counts as inside one that it is at most this share of its sides away from."""
FEW_LOST = 0.03
"""Largest share of the tasks that may have no image in the folder without a warning."""
RARE = 0.01
"""Keypoints that are labelled on a smaller share of the objects are named: their name may be a mistake."""
SHAPE_MARGIN = 0.02
"""Largest difference of two ratios of width and height, relative to one of them, that rounding explains."""

_NO_PERSON = "keypoints that belong to no rectangle, left out: move them into their rectangle in the list of regions"
_REPEATED = "keypoints that their person has already, left out: delete those that are wrong"
_OTHER_NAMES = "keypoints with other names than those that are given, left out"
_RARE_NAMES = "names of keypoints on fewer than 1 in 100 objects: if one is a mistake, rename its label in Label Studio"
_SAME_NAMES = "names of keypoints that differ only in case, each of which is a keypoint: rename one in Label Studio"
_OTHER_SHAPE = "tasks with another shape than the image of this name in the folder, left out: it is another image"
_NO_IMAGE = "tasks whose image is not in the folder, left out"
_SEVERAL_IMAGES = "tasks whose image may be one of several files in the folder, left out: rename these files"
_SAME_IMAGE = "tasks with the image of an earlier task, left out"
_OTHER_IMAGE = "tasks with different images of which one file in the folder has the name, left out: rename the files"
_DAMAGED = "tasks that cannot be read, left out"
_UNANNOTATED = "tasks without an annotation, left out"
_SEVERAL_ANNOTATIONS = "tasks with several annotations, of which the first is used"
_ROTATED = "tasks with an image that was rotated in Label Studio, left out: rotate the file instead"
_log = logging.getLogger(__name__)

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

    def add_point(self, region: _Region) -> bool:
        """Add a point, unless the person has this keypoint already; return whether it was added."""
        value = region["value"]
        name = str(value["keypointlabels"][0])
        is_new = name not in self.points
        self.points.setdefault(name, (float(value["x"]), float(value["y"])))
        return is_new

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
    refuse_labelme(tasks, path)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise DataError(f"{path} is not a list of tasks; export the project from Label Studio as JSON")
    files = _index_files(Path(images))
    notes = Notes()
    # For every file the addresses in tasks that may mean it, each with the tasks that can mean no other file.
    tasks_of: dict[Path, dict[str, list[tuple[str, list[_Person]]]]] = {}
    for number, task in enumerate(tasks, start=1):
        name = f"task {task.get('id', number)}"
        try:
            people = _read_people(task, notes, name)
            found = _find_files(task["data"], files)
            if people is None:
                continue
            if len(found) != 1:
                notes.add(_SEVERAL_IMAGES if found else _NO_IMAGE, name)
                # Several addresses: one of them may be that of the image which another task seems to mean.
                found = found if len(set(found.values())) > 1 else {}
                people_found = []
            else:
                people_found = [(name, people)]
            for file, address in found.items():
                if _has_annotated_shape(file, task):
                    tasks_of.setdefault(file, {}).setdefault(address, []).extend(people_found)
                elif people_found:
                    notes.add(_OTHER_SHAPE, name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = to_single_line(f"{type(error).__name__}: {error}")
            notes.add(_DAMAGED, f"{name}: {reason}")
            if not are_few(notes.count(_DAMAGED), len(tasks)):
                raise DataError(f"{path}: {name} cannot be read ({reason}); export the project again") from error
    people_of: dict[Path, list[_Person]] = {}
    for file, by_address in tasks_of.items():
        claims = list(chain.from_iterable(by_address.values()))
        if len(by_address) == 1 and claims:
            people_of[file] = claims.pop(0)[1]
        for name, _ in claims:
            notes.add(_SAME_IMAGE if len(by_address) == 1 else _OTHER_IMAGE, name)
    if not people_of:
        reasons = "; ".join(notes.lines()) or "it has no tasks"
        raise DataError(f"{path} has no annotated image of {images} ({reasons}); check the folder of the images")
    num_lost = notes.count(_NO_IMAGE, _SEVERAL_IMAGES, _OTHER_SHAPE, _OTHER_IMAGE)
    if num_lost > FEW_LOST * len(tasks):
        _log.warning("%d of %d tasks have no image in %s, and are left out", num_lost, len(tasks), images)
    repeated = dict.fromkeys(notes.names(_REPEATED))  # each task once
    if len(repeated) > max(1, FEW * len(tasks)):
        raise DataError(
            f"{path} has objects with the same keypoint twice in {len(repeated)} of {pluralize(len(tasks), 'task')} "
            f"({next(iter(repeated))}, for example): which keypoints belong together is not known; draw a rectangle "
            "around each object in Label Studio, and export the project again"
        )
    everybody = [person for people in people_of.values() for person in people]
    if not any(person.points for person in everybody):
        raise DataError(
            f"{path} has no keypoint in any of {pluralize(len(tasks), 'task')}; label keypoints (KeyPointLabels) in "
            "Label Studio, submit the annotations, and export the project again as JSON"
        )
    names = _keypoint_names(everybody, keypoints)
    for name in (name for person in everybody for name in person.points if name not in names):
        notes.add(_OTHER_NAMES, name)
    _note_doubtful_names(everybody, names, notes)
    categories = {name: number for number, name in enumerate(dict.fromkeys(person.category for person in everybody), 1)}

    def convert(image: Path) -> tuple[list[ImportedPerson], str]:
        return [person.convert(categories[person.category], names) for person in people_of[image]], ""

    return to_coco(list(people_of), convert, {number: name for name, number in categories.items()}, names, 100, notes)


def _index_files(folder: Path) -> dict[str, list[Path]]:
    """The images of a folder by the names that uploads of them have."""
    files: dict[str, list[Path]] = {}
    for path in find_images([folder], recursive=True):
        files.setdefault(_uploaded_name(path.name), []).append(path)
    return files


def _uploaded_name(name: str) -> str:
    """The name that Label Studio gives an uploaded file, which is that of Django: "a_1.jpg" for "a (1).jpg"."""
    return re.sub(r"[^-\w.]", "", name.strip().replace(" ", "_"))


def _find_files(data: Mapping[str, Any], files: Mapping[str, list[Path]]) -> dict[Path, str]:
    """The files that may be that of a task, and the path or the address in its data that names each.

    Label Studio puts eight digits and a hyphen before the names of uploaded files.
    """
    addresses: dict[Path, str] = {}
    for value in data.values():
        name = _file_name(value) if isinstance(value, str) else ""
        found = files.get(_uploaded_name(name), [])
        same = [path for path in found if path.name == name]
        found = same or found or files.get(_uploaded_name(re.sub(r"^[0-9a-f]{8}-", "", name)), [])
        addresses |= dict.fromkeys(found, value)
    return addresses


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
    try:
        height, width = read_header(file).displayed_size
    except DataError:
        return True  # the image is left out for another reason
    return any(abs(width * y - height * x) <= SHAPE_MARGIN * height * x for x, y in (sides, sides[::-1]))


def _side(region: _Region, name: str) -> float:
    """A side of the image in pixels as Label Studio has noted it; 0 if it has not."""
    value = region.get(f"original_{name}")
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else 0.0


def _read_people(task: Mapping[str, Any], notes: Notes, name: str) -> list[_Person] | None:
    """The people of a task; None if it cannot be used. Regions of other kinds are ignored."""
    annotations = [entry for entry in task.get("annotations") or [] if not entry.get("was_cancelled")]
    if not annotations:
        notes.add(_UNANNOTATED, name)
        return None
    if len(annotations) > 1:
        notes.add(_SEVERAL_ANNOTATIONS, name)
    regions = annotations[0]["result"]
    if any(region.get("image_rotation") for region in regions):
        notes.add(_ROTATED, name)
        return None
    people: dict[object, _Person] = {}
    for region in regions:
        if region.get("type") == "rectanglelabels":
            labels = region["value"].get("rectanglelabels") or [NO_RECTANGLE]
            people[region["id"]] = _Person(str(labels[0]), _rectangle(region))
    points = [region for region in regions if region.get("type") == "keypointlabels"]
    loose = []
    for region in points:
        if region.get("parentID") not in people:
            loose.append(region)
        elif not people[region["parentID"]].add_point(region):
            notes.add(_REPEATED, name)
    if loose and not people:
        people[None] = _Person(NO_RECTANGLE, None)
    for region in loose:
        # Without a parent, a point belongs to the only rectangle around it.
        value = region["value"]
        candidates = [person for person in people.values() if person.contains(value)]
        candidates = candidates or [person for person in people.values() if person.contains(value, MARGIN)]
        if len(candidates) != 1:
            notes.add(_NO_PERSON, name)
        elif not candidates[0].add_point(region):
            notes.add(_REPEATED, name)
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
        raise DataError(f"keypoints=NAMES has a keypoint twice: {truncate_for_message(names)}")
    return names


def _note_doubtful_names(people: Sequence[_Person], names: Sequence[str], notes: Notes) -> None:
    """Note the keypoints that are hardly labelled, and those whose names differ only in case."""
    counts = Counter(name for person in people for name in person.points)
    num_objects = sum(bool(person.points) for person in people)
    for name in names:
        if 0 < counts[name] < RARE * num_objects:
            notes.add(_RARE_NAMES, f"{name} on {counts[name]} of {num_objects}")
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(name.casefold(), []).append(name)
    for group in same.values():
        if len(group) > 1:
            notes.add(_SAME_NAMES, " and ".join(f"{name} on {counts[name]}" for name in group))
