"""Labelme: a JSON file for each image, with a point for each keypoint and, as a rule, a rectangle for each person.

What belongs together has the same group id, or else lies in the same rectangle. Polygons are outlines.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from posenet.annotations.importing.grouping import (
    NO_RECTANGLE,
    Point,
    add_object,
    assign_points,
    box_of_corners,
    convert_objects,
)
from posenet.annotations.importing.imported import ImportedAnnotations, Notes, Object, Source, by_file, readable

_OTHER_SHAPES = "shapes that are neither points, rectangles nor polygons, left out"


def is_labelme(content: object) -> bool:
    """Whether the content of a JSON file is that of Labelme."""
    return isinstance(content, dict) and "shapes" in content and "imagePath" in content


def import_labelme(source: Source) -> ImportedAnnotations:
    """Read a file, or those of a folder; all points count as visible."""
    files = source.content if source.kind == "json files" else {source.path: source.content}
    notes = Notes(list)
    objects_of: dict[str, list[Object]] = {}
    for path, content in files.items():
        with readable(path):
            objects_of[str(content["imagePath"])] = _read_objects(content["shapes"], notes, path.name)
    return convert_objects(by_file(objects_of, source, notes), source, notes, is_typed=True)


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
            outline = [[value for corner in corners for value in corner]] if kind == "polygon" else []
            item = Object(label, {}, box_of_corners(corners), outline)
            add_object(objects, ("shape", number) if group is None else group, item)
        else:
            notes[_OTHER_SHAPES].append(name)
    kinds = list(dict.fromkeys(item.category for item in objects.values()))
    return assign_points(objects, points, notes, name, category=kinds[0] if len(kinds) == 1 else NO_RECTANGLE)
