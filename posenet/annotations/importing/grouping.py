"""Labelled shapes as people: which points belong to which object, for tools that label shapes one by one."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posenet.annotations.importing.imported import ImportedPerson, Notes
from posenet.errors import DataError
from posenet.messages import truncate_for_message
from posenet.skeleton import COCO

NO_RECTANGLE = "person"
"""Category of people without a rectangle."""
MARGIN = 0.1
"""A keypoint in no rectangle counts as inside one that it is at most this share of its sides away from."""
RARE = 0.02
"""Share of the objects up to which a name that is like a frequent one counts as a slip of the pen."""
ALIKE = 0.8
"""How alike such names are, as ``difflib`` measures it; 1 is equal."""

NO_OBJECT = "keypoints that belong to no rectangle, left out: move them into their rectangle in the list of regions"
REPEATED = "keypoints that their person has already, left out: delete those that are wrong"
OTHER_NAMES = "keypoints with other names than those that are given, left out"
TYPOS = "labels that look mistyped, left out: correct them, or name all keypoints with keypoints=NAMES"


class Point(NamedTuple):
    """A labelled point."""

    name: str
    x: float
    y: float
    visibility: int = 2
    owner: Hashable = None
    """The key of its object; None if that is not stated."""


class Object(NamedTuple):
    """An object of an image with its keypoints: x, y and visibility by name."""

    category: str
    box: tuple[float, float, float, float] | None  # x, y, width, height
    points: dict[str, tuple[float, float, int]]
    outline: Sequence[list[float]] = ()

    def contains(self, point: Point, margin: float) -> bool:
        """Whether a point is in the box, extended by a share of its sides; always true without a box."""
        if self.box is None:
            return True
        x, y, width, height = self.box
        is_between = -margin * width <= point.x - x <= (1 + margin) * width
        return is_between and -margin * height <= point.y - y <= (1 + margin) * height


def box_of_corners(corners: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """x, y, width, height around points."""
    points = np.array(corners, np.float64)
    left, top = points.min(axis=0).tolist()
    width, height = np.ptp(points, axis=0).tolist()
    return left, top, width, height


def assign_points(
    objects: dict[Hashable, Object], points: Sequence[Point], notes: Notes, name: str, category: str = NO_RECTANGLE
) -> list[Object]:
    """Give every point to its object: the stated one, or else the only one around it.

    Points with an owner that is no object make one of their own; all points of an image without objects are one.

    Args:
        objects: by their keys; points are added.
        name: that of the image or the task, for notes.
        category: that of objects without a box.
    """
    for point in points:
        if point.owner is not None and point.owner not in objects:
            objects[point.owner] = Object(category, None, {})
    if points and not objects:
        objects[None] = Object(category, None, {})
    # Points with an owner come first: of two with the same name, the one that has an owner is right.
    for point in sorted(points, key=lambda point: point.owner not in objects):
        owners = [objects[point.owner]] if point.owner in objects else []
        for margin in (0, MARGIN):
            owners = owners or [item for item in objects.values() if item.contains(point, margin)]
        if len(owners) != 1:
            notes[NO_OBJECT].append(name)
        elif point.name in owners[0].points:
            notes[REPEATED].append(name)
        else:
            owners[0].points[point.name] = point.x, point.y, point.visibility
    grouped = {key: item for key, item in objects.items() if item.box is None}
    boxes = {key: item for key, item in objects.items() if item.box is not None and not item.points}
    if not grouped or not boxes:
        return list(objects.values())
    others = [item for key, item in objects.items() if key not in grouped and key not in boxes]
    return others + join_boxes(grouped, boxes) + list(boxes.values())


def join_boxes(objects: Mapping[Hashable, Object], boxes: dict[Hashable, Object]) -> list[Object]:
    """The objects, each with the box and the outline of the same key, or else the only one around its points.

    What is joined leaves ``boxes``.
    """
    joined = []
    for key, item in objects.items():
        points = [Point("", x, y) for x, y, _ in item.points.values()]
        around = [
            other for other, box in boxes.items() if points and all(box.contains(point, MARGIN) for point in points)
        ]
        chosen = key if key in boxes else around[0] if len(around) == 1 else None
        box = boxes.pop(chosen, None)
        joined.append(item if box is None else box._replace(points=item.points))
    return joined


def choose_names(
    objects: Iterable[tuple[str, Object]], given: Sequence[str] | None, notes: Notes, is_typed: bool = False
) -> tuple[str, ...]:
    """The names of the keypoints: those that are given, COCO's if it has all, or else in the order of their appearance.

    Args:
        objects: with the names of their images, for notes.
        is_typed: whether the names are typed for every point, so that some may be mistyped.

    Raises:
        DataError: a name is given twice.
    """
    if given and len(set(given)) < len(given):
        raise DataError(f"keypoints=NAMES has a keypoint twice: {truncate_for_message(tuple(given))}")
    places: dict[str, list[str]] = {}
    count = 0
    for image, item in objects:
        count += bool(item.points)
        for name in item.points:
            places.setdefault(name, []).append(image)
    if given:
        notes[OTHER_NAMES] += [name for name, images in places.items() if name not in given for _ in images]
        return tuple(given)
    typos = _find_typos({name: len(images) for name, images in places.items()}, count) if is_typed else {}
    for name, meant in typos.items():
        notes[TYPOS] += [f"{name!r} in {image}, perhaps {meant!r}" for image in places.pop(name)]
    return COCO.file_names if set(places) <= set(COCO.file_names) else tuple(places)


def _find_typos(counts: Mapping[str, int], num_objects: int) -> dict[str, str]:
    """Rare names that are like a frequent one, with that one. Numbers and sides are no slips of the pen."""
    typos = {}
    rare = [name for name, count in counts.items() if count <= max(1, RARE * num_objects)]
    frequent = [name for name, count in counts.items() if count > 2 * max(1, RARE * num_objects)]
    for name in rare:
        for other in difflib.get_close_matches(name, frequent, n=1, cutoff=ALIKE):
            if _marks(name) == _marks(other) or not _marks(name):
                typos[name] = other
    return typos


def _marks(name: str) -> Counter[str]:
    """The numbers and the words for sides in a name."""
    return Counter(re.findall(r"\d+|left|right|front|back|upper|lower", name.lower()))


def to_people(objects: Iterable[Object], names: Sequence[str], categories: Mapping[str, int]) -> list[ImportedPerson]:
    """The objects with their keypoints in the order of the names."""
    people = []
    for item in objects:
        keypoints = np.array([item.points.get(name, (0, 0, 0)) for name in names], np.float64).reshape(-1, 3)
        people.append(ImportedPerson(categories[item.category], keypoints, item.box, item.outline))
    return people


def number_categories(objects: Iterable[Object]) -> dict[str, int]:
    """A number from 1 for every category, in the order of their appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(item.category for item in objects), 1)}
