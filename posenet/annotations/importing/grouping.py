"""Labelled shapes as objects: which points belong to which object, for tools that label shapes one by one."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations.importing.imported import FEW, ImportedAnnotations, Notes, Object, Source, to_coco
from posenet.errors import DataError
from posenet.messages import truncate_for_message
from posenet.skeleton import COCO

NO_RECTANGLE = "person"
"""Category of objects without a rectangle."""
MARGIN = 0.1
"""A keypoint in no rectangle counts as inside one that it is at most this share of its sides away from."""
RARE = 0.02
"""Share of the objects up to which a name that is like a frequent one counts as a slip of the pen."""
ALIKE = 0.8
"""How alike such names are, as ``difflib`` measures it; 1 is equal."""

NO_OBJECT = "keypoints that belong to no rectangle, left out: move them into their rectangle in the list of regions"
REPEATED = "keypoints that their object has already, left out: delete those that are wrong"
OTHER_NAMES = "keypoints with other names than those that are given, left out"
SPELLINGS = "labels in another spelling, taken as the frequent one"
TYPOS = "labels that look mistyped, left out: correct them, or name all keypoints with --keypoints NAMES"


class Point(NamedTuple):
    """A labelled point."""

    name: str
    x: float
    y: float
    visibility: int = 2
    owner: Hashable = None
    """The key of its object; None if that is not stated."""


def box_of_corners(corners: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """x, y, width, height around points."""
    points = np.array(corners, np.float64)
    left, top = points.min(axis=0).tolist()
    width, height = np.ptp(points, axis=0).tolist()
    return left, top, width, height


def _is_around(item: Object, x: float, y: float, margin: float) -> bool:
    """Whether a point is in the box, extended by a share of its sides; always true without a box."""
    if item.box is None:
        return True
    left, top, width, height = item.box
    return -margin * width <= x - left <= (1 + margin) * width and -margin * height <= y - top <= (1 + margin) * height


def add_object(objects: dict[Hashable, Object], key: Hashable, item: Object) -> None:
    """Add a shape to the object of its key: a box, an outline or points; no object has points of two shapes."""
    old = objects.get(key)
    if old is None or (old.points and item.points):
        objects[key if old is None else ("shape", len(objects))] = item
        return
    category = item.category if item.box else old.category
    objects[key] = Object(category, old.points or item.points, item.box or old.box, item.outline or old.outline)


def assign_points(
    objects: dict[Hashable, Object], points: Sequence[Point], notes: Notes, name: str, category: str = NO_RECTANGLE
) -> list[Object]:
    """Give every point to its object: the stated one, or else the only one around it.

    Points with an owner that is no object make one of their own; all points of an image without objects are one.

    Args:
        objects: by their keys.
        name: that of the image or the task, for notes.
        category: that of objects without a box.
    """
    for point in points:
        if point.owner is not None:
            objects.setdefault(point.owner, Object(category, {}))
    if points and not objects:
        objects[None] = Object(category, {})
    found: dict[Hashable, dict[str, Sequence[float]]] = {key: dict(item.points) for key, item in objects.items()}
    # Points with an owner come first: of two with the same name, the one that has an owner is right.
    for point in sorted(points, key=lambda point: point.owner not in objects):
        keys = [point.owner] if point.owner in objects else []
        for margin in (0, MARGIN):
            keys = keys or [key for key, item in objects.items() if _is_around(item, point.x, point.y, margin)]
        if len(keys) != 1:
            notes[NO_OBJECT].append(name)
        elif point.name in found[keys[0]]:
            notes[REPEATED].append(name)
        else:
            found[keys[0]][point.name] = point.x, point.y, point.visibility
    return _join_boxes({key: item._replace(points=found[key]) for key, item in objects.items()})


def _join_boxes(objects: dict[Hashable, Object]) -> list[Object]:
    """The objects, of which those with points alone get the only box around them that has none."""
    boxes = {key: item for key, item in objects.items() if item.box is not None and not item.points}
    for key in [key for key, item in objects.items() if item.box is None]:
        points = objects[key].points
        around = [
            other
            for other, box in boxes.items()
            if points and all(_is_around(box, x, y, MARGIN) for x, y, _ in points.values())
        ]
        if len(around) == 1:
            objects[key] = boxes.pop(around[0])._replace(points=points)
            del objects[around[0]]
    return list(objects.values())


def convert_objects(
    objects_of: Mapping[Path, Sequence[Object]],
    source: Source,
    notes: Notes,
    *,
    listed: Sequence[str] = (),
    edges: Sequence[tuple[str, str]] = (),
    is_typed: bool = False,
    whole: float | None = None,
) -> ImportedAnnotations:
    """Convert the objects of all images, as ``to_coco`` does.

    The names of the keypoints are those that are given, those that are listed if they are all, COCO's if it has all, or
    else in the order of their appearance.

    Args:
        is_typed: whether the names are typed for every point, so that some may be mistyped.

    Raises:
        DataError: nothing has keypoints, which of them belong together is not known, or a name is given twice.
    """
    path, given = source.path, source.keypoints
    if is_typed:
        objects_of = _join_spellings(objects_of, notes)
    everything = [(image.name, item) for image, items in objects_of.items() for item in items if item.points]
    if not everything:
        raise DataError(f"{path} has no keypoints: label them as points with names, then export it again")
    if (count := len(set(notes[REPEATED]))) > max(1, FEW * len(objects_of)):
        raise DataError(
            f"{path} has objects with the same keypoint twice in {count} of {len(objects_of)} images, such as "
            f"{notes[REPEATED][0]}: which belong together is not known; draw a rectangle around each object"
        )
    if given and len(set(given)) < len(given):
        raise DataError(f"--keypoints NAMES has a keypoint twice: {truncate_for_message(tuple(given))}")
    places: dict[str, list[str]] = {}
    for image, item in everything:
        for name in item.points:
            places.setdefault(name, []).append(image)
    typos = {} if given or not is_typed else _find_typos(places, len(everything))
    for name, meant in typos.items():
        notes[TYPOS] += [f"{name!r} in {image}, perhaps {meant!r}" for image in places.pop(name)]
    known = next((names for names in (tuple(listed), COCO.file_names) if set(places) <= set(names)), tuple(places))
    names = tuple(given or known)
    notes[OTHER_NAMES] += [name for name, images in places.items() if name not in names for _ in images]
    return to_coco(objects_of, names, notes, edges=edges, whole=whole)


def _join_spellings(objects_of: Mapping[Path, Sequence[Object]], notes: Notes) -> dict[Path, list[Object]]:
    """The objects, with the most frequent name of those that differ in upper case, blanks and hyphens alone."""
    everything = [item for items in objects_of.values() for item in items]
    counts = Counter(name for item in everything for name in item.points)
    spelled: dict[str, str] = {}
    for name, _ in counts.most_common():
        spelled.setdefault(re.sub(r"[\W_]", "", name.lower()), name)
    chosen = {name: spelled[re.sub(r"[\W_]", "", name.lower())] for name in counts}
    notes[SPELLINGS] += [f"{name!r} is {other!r}" for name, other in chosen.items() if name != other]
    return {
        image: [item._replace(points={chosen[name]: point for name, point in item.points.items()}) for item in items]
        for image, items in objects_of.items()
    }


def _find_typos(places: Mapping[str, Sequence[str]], num_objects: int) -> dict[str, str]:
    """Rare names that are like a frequent one, with that one. Numbers and sides are no slips of the pen."""
    limit = max(1, RARE * num_objects)
    frequent = [name for name, images in places.items() if len(images) > 2 * limit]
    typos = {}
    for name in [name for name, images in places.items() if len(images) <= limit]:
        for other in difflib.get_close_matches(name, frequent, n=1, cutoff=ALIKE):
            if _marks(name) == _marks(other) or not _marks(name):
                typos[name] = other
    return typos


def _marks(name: str) -> Counter[str]:
    return Counter(re.findall(r"\d+|left|right|front|back|upper|lower", name.lower()))
