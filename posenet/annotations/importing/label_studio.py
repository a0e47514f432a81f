"""Import the JSON export of Label Studio: tasks with rectangles and keypoints.

The export in COCO's format joins the keypoints of all people of an image, so it is of use only for images of one
person. The JSON export keeps the rectangle of every keypoint in ``parentID``. Coordinates are percentages of the
displayed image.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from posenet.annotations.importing.grouping import (
    NO_RECTANGLE,
    REPEATED,
    Object,
    Point,
    assign_points,
    choose_names,
    number_categories,
    to_people,
)
from posenet.annotations.importing.imported import (
    FEW,
    ImportedAnnotations,
    ImportedPerson,
    Labels,
    Notes,
    are_few,
    note_lines,
    to_coco,
)
from posenet.errors import DataError
from posenet.images import find_images
from posenet.messages import pluralize, to_single_line

MAX_PERCENT = 110
"""Label Studio keeps keypoints inside the image, of which the whole is 100; rounding explains a little more."""
FEW_LOST = 0.03
"""Largest share of the tasks that may have no image in the folder without a warning."""

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


def import_label_studio(
    tasks: Sequence[Mapping[str, Any]], path: Path, images: str | Path, keypoints: Sequence[str] | None = None
) -> ImportedAnnotations:
    """Read a JSON export of Label Studio; ``DataError`` if it has no image of the folder.

    Args:
        tasks: the content of the file.
        images: folder of the images, which are found by their names at any depth.
        keypoints: names of the keypoints in order; None takes COCO's if it has all names, or else the order in which
            they first appear.
    """
    notes = Notes(list)
    people_of = _people_of_images(tasks, path, Path(images), notes)
    if not people_of:
        reasons = "; ".join(note_lines(notes)) or "it has no tasks"
        raise DataError(f"{path} has no annotated image of {images} ({reasons}); check the folder of the images")
    lost = Notes(list, {note: notes[note] for note in (_NO_IMAGE, _SEVERAL_IMAGES, _OTHER_IMAGE)})
    num_lost = sum(map(len, lost.values()))
    if num_lost > FEW_LOST * len(tasks):
        reasons = "; ".join(note_lines(lost))
        _log.warning("%d of %d tasks have no image in %s, and are left out: %s", num_lost, len(tasks), images, reasons)
    repeated = dict.fromkeys(notes[REPEATED])  # each task once
    if len(repeated) > max(1, FEW * len(tasks)):
        raise DataError(
            f"{path} has objects with the same keypoint twice in {len(repeated)} of {pluralize(len(tasks), 'task')} "
            f"({next(iter(repeated))}, for example): which keypoints belong together is not known; draw a rectangle "
            "around each object in Label Studio, and export the project again"
        )
    everybody = [person for people in people_of.values() for person in people]
    if not any(person.points for person in everybody):
        raise DataError(
            f"{path} has no keypoint in any of {pluralize(len(people_of), 'task')} with an image; label keypoints "
            "(KeyPointLabels) in Label Studio, submit the annotations, and export the project again as JSON"
        )
    named = [(image.name, person) for image, people in people_of.items() for person in people]
    names = choose_names(named, keypoints, notes)
    categories = number_categories(everybody)

    def convert(image: Path) -> tuple[list[ImportedPerson], str]:
        return to_people(people_of[image], names, categories), ""

    labels = Labels({number: name for name, number in categories.items()}, names)
    return to_coco(list(people_of), convert, labels, notes, whole=100)


def _people_of_images(
    tasks: Sequence[Mapping[str, Any]], path: str | Path, folder: Path, notes: Notes
) -> dict[Path, list[Object]]:
    """The people of every image of the folder that one task means; all other tasks are noted."""
    files: dict[str, list[Path]] = {}
    for file in find_images([folder], recursive=True):
        files.setdefault(_uploaded_name(file.name), []).append(file)
    # Of every image: the address in a task, its name and its people.
    claims: dict[Path, list[tuple[str, str, list[Object]]]] = {}
    for number, task in enumerate(tasks, start=1):
        name = f"task {task.get('id', number)}"
        try:
            regions = _regions(task, notes, name)
            if regions is None:
                continue
            people = _read_people(regions, notes, name)
            found = _find_files(task["data"], files)
            if len(found) == 1:
                [(file, address)] = found.items()
                claims.setdefault(file, []).append((address, name, people))
            else:
                notes[_SEVERAL_IMAGES if found else _NO_IMAGE].append(name)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = to_single_line(f"{type(error).__name__}: {error}")
            notes[_DAMAGED].append(f"{name}: {reason}")
            if not are_few(len(notes[_DAMAGED]), len(tasks)):
                raise DataError(f"{path}: {name} cannot be read ({reason}); export the project again") from error
    people_of: dict[Path, list[Object]] = {}
    for file, claims_of_file in claims.items():
        is_one_image = len({address for address, _, _ in claims_of_file}) == 1
        if is_one_image:
            people_of[file] = claims_of_file.pop(0)[2]
        notes[_SAME_IMAGE if is_one_image else _OTHER_IMAGE] += [name for _, name, _ in claims_of_file]
    return people_of


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
    """The file name in a path or in an address, such as /data/local-files/?d=a/1.jpg."""
    try:
        address = urlsplit(value)
    except ValueError:
        return value
    path = parse_qs(address.query).get("d", [unquote(address.path)])[0]
    return PureWindowsPath(PurePosixPath(path).name).name


def _regions(task: Mapping[str, Any], notes: Notes, name: str) -> list[_Region] | None:
    """The regions of the annotation of a task; None if it cannot be used."""
    annotations = [entry for entry in task.get("annotations") or [] if not entry.get("was_cancelled")]
    if not annotations:
        notes[_UNANNOTATED].append(name)
        return None
    if len(annotations) > 1:
        notes[_SEVERAL_ANNOTATIONS].append(name)
    regions: list[_Region] = annotations[0]["result"]
    if any(region.get("image_rotation") for region in regions):
        notes[_ROTATED].append(name)
        return None
    return regions


def _read_people(regions: Sequence[_Region], notes: Notes, name: str) -> list[Object]:
    """The people of a task. Regions of other kinds than rectangles and keypoints are ignored."""
    people: dict[Hashable, Object] = {}
    for region in regions:
        if region.get("type") == "rectanglelabels":
            labels = region["value"].get("rectanglelabels") or [NO_RECTANGLE]
            people[region["id"]] = Object(str(labels[0]), _rectangle(region), {})
    points = []
    for region in regions:
        if region.get("type") == "keypointlabels":
            value = region["value"]
            place = float(value["x"]), float(value["y"])
            _require_percentages("keypoint", place)
            parent = region.get("parentID")
            owner = parent if parent in people else None
            points.append(Point(str(value["keypointlabels"][0]), place[0], place[1], owner=owner))
    return assign_points(people, points, notes, name)


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
    box = x + float(low[0]) / aspect, y + float(low[1]), float(size[0]) / aspect, float(size[1])
    _require_percentages("rectangle", box)
    return box


def _require_percentages(what: str, numbers: Sequence[float]) -> None:
    """``ValueError`` if a number is not finite, or far outside the image."""
    if not all(abs(number) <= MAX_PERCENT for number in numbers):
        text = ", ".join(f"{number:g}" for number in numbers)
        raise ValueError(f"a {what} at {text}, which are not percentages of the image")
