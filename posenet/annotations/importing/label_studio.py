"""Label Studio's export as JSON: tasks with rectangles and keypoints.

The export in COCO's format joins the keypoints of all people of an image, so it is of use only for images of one
person. The JSON export keeps the rectangle of every keypoint in ``parentID``. Coordinates are percentages of the
displayed image.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from posenet.annotations.importing.grouping import NO_RECTANGLE, Point, assign_points, convert_objects
from posenet.annotations.importing.imported import ImportedAnnotations, Notes, Object, Source, are_few, by_file
from posenet.errors import DataError
from posenet.images import IMAGE_SUFFIXES
from posenet.messages import to_single_line

_SAME_IMAGE = "tasks with the image of an earlier task, left out"
_DAMAGED = "tasks that cannot be read, left out"
_UNANNOTATED = "tasks without an annotation, left out"
_SEVERAL_ANNOTATIONS = "tasks with several annotations, of which the first is used"
_ROTATED = "tasks with an image that was rotated in Label Studio, left out: rotate the file instead"

_Region = Mapping[str, Any]


def import_label_studio(source: Source) -> ImportedAnnotations:
    """Read a JSON export, whose images are found by their names at any depth."""
    path = source.path
    notes = Notes(list)
    objects_of: dict[str, list[Object]] = {}
    for number, task in enumerate(source.content, start=1):
        title = f"task {number}"
        try:
            title = f"task {task.get('id', number)}"
            regions = _regions(task, notes, title)
            if regions is None:
                continue
            objects = _read_objects(regions, notes, title)
            name = _image_name(task["data"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = to_single_line(f"{type(error).__name__}: {error}")
            notes[_DAMAGED].append(f"{title}: {reason}")
            if not are_few(len(notes[_DAMAGED]), len(source.content)):
                raise DataError(f"{path}: {title} cannot be read ({reason}); export the project as JSON") from error
            continue
        if name in objects_of:
            notes[_SAME_IMAGE].append(title)
        objects_of.setdefault(name, objects)
    if not objects_of:
        raise DataError(
            f"{path} has no task with an annotation; label and submit some, then export the project as JSON"
        )
    return convert_objects(by_file(objects_of, source, notes), source, notes, whole=100)


def _image_name(data: Mapping[str, Any]) -> str:
    """The path of the image of a task, which is the only value that may be one; or that of an address, such as
    /data/local-files/?d=a/1.jpg."""
    names = []
    for value in data.values():
        try:
            address = urlsplit(value.replace("\\", "/") if isinstance(value, str) else "")
        except ValueError:  # such as "http://["
            continue
        name = parse_qs(address.query).get("d", [unquote(address.path)])[0]
        names += [name] if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES else []
    if len(names) != 1:
        raise ValueError(f"{len(names)} images in its data, not one")
    return str(names[0])


def _regions(task: Mapping[str, Any], notes: Notes, title: str) -> list[_Region] | None:
    """The regions of the annotation of a task; None if it cannot be used."""
    annotations = [entry for entry in task.get("annotations") or [] if not entry.get("was_cancelled")]
    if not annotations:
        notes[_UNANNOTATED].append(title)
        return None
    if len(annotations) > 1:
        notes[_SEVERAL_ANNOTATIONS].append(title)
    regions: list[_Region] = annotations[0]["result"]
    if any(region.get("image_rotation") for region in regions):
        notes[_ROTATED].append(title)
        return None
    return regions


def _read_objects(regions: Sequence[_Region], notes: Notes, title: str) -> list[Object]:
    """The objects of a task, in percentages. Regions of other kinds than rectangles and keypoints are ignored."""
    objects: dict[Hashable, Object] = {}
    points = []
    for region in regions:
        if region.get("type") == "rectanglelabels":
            labels = region["value"].get("rectanglelabels") or [NO_RECTANGLE]
            objects[region["id"]] = Object(str(labels[0]), {}, _rectangle(region))
        elif region.get("type") == "keypointlabels":
            value = region["value"]
            x, y = float(value["x"]), float(value["y"])
            points.append(Point(str(value["keypointlabels"][0]), x, y, owner=region.get("parentID")))
    points = [point if point.owner in objects else point._replace(owner=None) for point in points]
    return assign_points(objects, points, notes, title)


def _rectangle(region: _Region) -> tuple[float, float, float, float] | None:
    """x, y, width, height in percentages; None if it is rotated: then the box is that around the keypoints."""
    value = region["value"]
    x, y, width, height = (float(value[key]) for key in ("x", "y", "width", "height"))
    return None if float(value.get("rotation") or 0) else (x, y, width, height)
