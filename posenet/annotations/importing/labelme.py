"""Labelme: a JSON file for each image, with a point for each keypoint and, as a rule, a rectangle for each person.

What belongs together has the same group id, or else lies in the same rectangle. Polygons are outlines.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenet.annotations.importing.grouping import (
    NO_RECTANGLE,
    Object,
    Point,
    assign_points,
    box_of_corners,
    choose_names,
    number_categories,
    to_people,
)
from posenet.annotations.importing.image_files import ImageFiles
from posenet.annotations.importing.imported import ImportedAnnotations, Labels, Notes, readable, to_coco
from posenet.annotations.importing.published_sets import MISSING_IMAGES
from posenet.errors import DataError

_OTHER_SHAPES = "shapes that are neither points, rectangles nor polygons, left out"


def is_labelme(content: object) -> bool:
    """Whether the content of a JSON file is that of Labelme."""
    return isinstance(content, dict) and "shapes" in content and "imagePath" in content


def import_labelme(
    files: Mapping[Path, Mapping[str, Any]],
    source: Path,
    images: str | Path | None = None,
    keypoints: Sequence[str] | None = None,
) -> ImportedAnnotations:
    """Read the files of a folder; all points count as visible.

    Args:
        files: their content.
        source: the folder, or the only file.
    """
    notes = Notes(list)
    folder = ImageFiles.near(source, images)
    objects_of: dict[Path, list[Object]] = {}
    for path, content in files.items():
        # Beside the file in most cases, where the path in it may be that of another computer.
        image = ImageFiles(path.parent).find(str(content["imagePath"])) or folder.find(str(content["imagePath"]))
        if image is None:
            notes[MISSING_IMAGES].append(str(content["imagePath"]))
            continue
        with readable(path):
            objects_of[image] = _read_objects(content["shapes"], notes, path.name)
    if not objects_of:
        raise DataError(f"no image of {source} is in {folder.folder}; name their folder with images=DIR")
    everything = [(image.name, item) for image, items in objects_of.items() for item in items]
    names = choose_names(everything, keypoints, notes, is_typed=True)
    if not any(item.points for _, item in everything):
        raise DataError(f"{source} has no points; label each keypoint in Labelme by a point with its name")
    categories = number_categories(item for _, item in everything)
    labels = Labels({number: name for name, number in categories.items()}, names)
    return to_coco(list(objects_of), lambda image: (to_people(objects_of[image], names, categories), ""), labels, notes)


def _read_objects(shapes: Sequence[Mapping[str, Any]], notes: Notes, name: str) -> list[Object]:
    objects: dict[Hashable, Object] = {}
    points: list[Point] = []
    for number, shape in enumerate(shapes):
        kind = shape.get("shape_type")
        label = str(shape["label"])
        corners = [[float(x), float(y)] for x, y in shape["points"]]
        group = shape.get("group_id")
        if kind == "point":
            x, y = corners[0]
            points.append(Point(label, x, y, owner=group))
        elif kind in ("rectangle", "polygon"):
            key = ("shape", number) if group is None else group
            outline = [[value for corner in corners for value in corner]] if kind == "polygon" else []
            if key in objects:  # a rectangle and an outline of the same object
                outline = outline or list(objects[key].outline)
            objects[key] = Object(label, box_of_corners(corners), {}, outline)
        else:
            notes[_OTHER_SHAPES].append(name)
    kinds = list(dict.fromkeys(item.category for item in objects.values()))
    return assign_points(objects, points, notes, name, category=kinds[0] if len(kinds) == 1 else NO_RECTANGLE)
