"""Exports of tools in which people label shapes one by one: CVAT, Label Studio, Labelme.

Every reader lists the shapes of an image, and ``group_shapes`` makes objects of them: a group or a parent in the file
says what belongs together, or else the box around the points.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

import numpy as np

from posenet.annotations.adjustments import are_few
from posenet.annotations.importing.imported import ImportedAnnotations, Object, Source, readable, to_coco
from posenet.errors import DataError
from posenet.images import IMAGE_SUFFIXES
from posenet.skeleton import COCO

NO_RECTANGLE = "person"
"""Category of objects without a rectangle."""
MARGIN = 0.1
"""A keypoint in no rectangle counts as inside one that it is at most this share of its sides away from."""
RARE = 0.02
"""Share of the objects up to which a name may be mistyped."""

_NO_OBJECT = "keypoints that belong to no rectangle, left out: move them into their rectangle in the list of regions"
_SPELLINGS = "labels in another spelling, taken as the frequent one"
_RARE_NAMES = "keypoints that few objects have: correct those that are mistyped"
_REPEATED = "keypoints that their object has already, left out: delete those that are wrong"


Shape = tuple[Hashable, Object]
"""A box, an outline, a skeleton, or a point, which has no category; with the key of its object, None if that is not
stated."""


def import_cvat(source: Source) -> ImportedAnnotations:
    """Read "CVAT for images 1.1": an XML file beside the folder images.

    Points that are outside are not labelled, occluded ones are hidden. Several points in one shape are numbered
    keypoints.
    """
    root = source.content
    objects_of = {image.attrib["name"]: _read_cvat(image, source, image.attrib["name"]) for image in root.iter("image")}
    if not objects_of:
        raise DataError(f'{source.path} has no images; export the task from CVAT as "CVAT for images 1.1", with images')
    used = {item.category for items in objects_of.values() for item in items if item.points}
    labels = [label for label in root.iter("label") if label.findtext("parent") in used]
    listed = list(dict.fromkeys(label.findtext("name") or "" for label in labels))
    edges = []
    for drawing in root.iter("svg"):
        tags = re.findall(r"<(?:circle|line)\b[^>]*>", drawing.text or "")
        nodes = [dict(re.findall(r'([\w-]+)="([^"]*)"', tag)) for tag in tags]
        name_of = {node.get("data-node-id"): node.get("data-label-name", "") for node in nodes}
        ends = [(node["data-node-from"], node.get("data-node-to")) for node in nodes if "data-node-from" in node]
        edges += [(name_of.get(first, ""), name_of.get(last, "")) for first, last in ends]
    return to_coco(objects_of, choose_names(objects_of, source, listed), source, edges=edges)


def _read_cvat(elements: Iterable[ElementTree.Element], source: Source, name: str) -> list[Object]:
    shapes: list[Shape] = []
    for element in elements:
        label = element.get("label", "")
        group = element.get("group_id", "0")
        key = None if group == "0" else group
        if element.tag == "box":
            item = _area(label, [[float(element.attrib[axis + end]) for axis in "xy"] for end in ("tl", "br")])
        elif element.tag == "polygon":
            item = _area(label, _corners(element), is_outline=True)
        elif element.tag == "skeleton":
            item = Object(label, {name: place for child in element for name, place in _points(child)})
        elif len(own := _points(element)) == 1:
            item = Object("", dict(own))
        else:
            item = Object(label, {f"keypoint_{number}": place for number, (_, place) in enumerate(own, 1)})
        if item.points or item.box:
            shapes.append((key, item))
    return group_shapes(shapes, source, name)


def _points(element: ElementTree.Element) -> list[tuple[str, tuple[float, float, int]]]:
    if element.tag != "points" or element.get("outside") == "1":
        return []
    visibility = 1 if element.get("occluded") == "1" else 2
    return [(element.attrib["label"], (x, y, visibility)) for x, y in _corners(element)]


def _corners(element: ElementTree.Element) -> list[list[float]]:
    """x, y of every point in "x,y;x,y"."""
    pairs = [pair.split(",") for pair in element.attrib["points"].split(";") if pair]
    return [[float(x), float(y)] for x, y in pairs]


def import_label_studio(source: Source) -> ImportedAnnotations:
    """Read the export as JSON: tasks with rectangles and keypoints, in percentages of the displayed image.

    The export in COCO's format joins the keypoints of all people of an image; this one has the rectangle of every
    keypoint in ``parentID``. Images are found by their names at any depth.
    """
    objects_of: dict[str, list[Object]] = {}
    for number, task in enumerate(source.content, start=1):
        title = f"task {task.get('id', number) if isinstance(task, dict) else number}"
        try:
            with readable(f"{source.path}, {title}"):
                _read_task(task, source, title, objects_of)
        except DataError as error:
            source.faults.append(str(error))
    if not objects_of and not source.faults:
        raise DataError(
            f"{source.path} has no task with an annotation; label and submit some, then export the project as JSON"
        )
    return to_coco(objects_of, choose_names(objects_of, source), source, whole=100)


def _read_task(task: Mapping[str, Any], source: Source, title: str, objects_of: dict[str, list[Object]]) -> None:
    """Add the objects of a task under the name of its image."""
    notes = source.notes
    submitted = [entry for entry in task.get("annotations") or [] if not entry.get("was_cancelled")]
    if not submitted:
        notes["tasks without an annotation, left out"].append(title)
        return
    if len(submitted) > 1:
        notes["tasks with several annotations, of which the first is used"].append(title)
    regions = submitted[0]["result"]
    if any(region.get("image_rotation") for region in regions):
        notes["tasks whose image was rotated in Label Studio, left out: rotate the file instead"].append(title)
        return
    name = _image_name(task["data"])
    if name in objects_of:
        notes["tasks with the image of an earlier task, left out"].append(title)
    else:
        objects_of[name] = _read_regions(regions, source, title)


def _image_name(data: Mapping[str, Any]) -> str:
    """The address of the image of a task, which is the only value that may be one; or the path in it, such as that of
    /data/local-files/?d=a/1.jpg."""
    names = []
    for value in data.values():
        address, _, query = str(value).replace("\\", "/").partition("?")
        name = parse_qs(query).get("d", [unquote(address)])[0]
        names += [name] if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES else []
    if len(names) != 1:
        raise ValueError(f"{len(names)} images in its data, not one")
    return names[0]


def _read_regions(regions: Sequence[Mapping[str, Any]], source: Source, title: str) -> list[Object]:
    """The objects of a task, in percentages. Regions of other kinds than rectangles and keypoints are ignored."""
    rectangles: dict[Hashable, Object] = {}
    points: list[Shape] = []
    for region in regions:
        value = region.get("value", {})
        if region.get("type") == "rectanglelabels":
            box = [float(value[key]) for key in ("x", "y", "width", "height")]
            label = (value.get("rectanglelabels") or [NO_RECTANGLE])[0]
            # The box of a rotated rectangle is that around the keypoints.
            rectangles[region["id"]] = Object(str(label), {}, None if float(value.get("rotation") or 0) else box)
        elif region.get("type") == "keypointlabels" and not value.get("keypointlabels"):
            source.notes["keypoints without a label, left out"].append(title)
        elif region.get("type") == "keypointlabels":
            place = float(value["x"]), float(value["y"]), 2
            points.append((region.get("parentID"), Object("", {str(value["keypointlabels"][0]): place})))
    points = [(key if key in rectangles else None, item) for key, item in points]
    return group_shapes([*rectangles.items(), *points], source, title)


def import_labelme(source: Source) -> ImportedAnnotations:
    """Read a JSON file for each image: a point for each keypoint and, as a rule, a rectangle for each person.

    Polygons are outlines. All points count as visible. Their names are typed, so that some differ in the spelling.
    """
    objects_of: dict[str, list[Object]] = {}
    for path, content in source.content.items():
        with readable(path):
            objects_of[str(content["imagePath"])] = _read_labelme(content["shapes"], source, path.name)
    objects_of = _mend_names(objects_of, source)
    return to_coco(objects_of, choose_names(objects_of, source), source)


def _read_labelme(shapes: Sequence[Mapping[str, Any]], source: Source, name: str) -> list[Object]:
    areas: list[Shape] = []
    points: list[Shape] = []
    for shape in shapes:
        kind, label, group = shape.get("shape_type"), str(shape["label"]), shape.get("group_id")
        corners = [[float(x), float(y)] for x, y in shape["points"]]
        if kind == "point":
            x, y = corners[0]
            points.append((group, Object("", {label: (x, y, 2)})))
        elif kind in ("rectangle", "polygon"):
            areas.append((group, _area(label, corners, is_outline=kind == "polygon")))
        else:
            source.notes["shapes that are neither points, rectangles nor polygons, left out"].append(name)
    kinds = {item.category for _, item in areas}
    return group_shapes([*areas, *points], source, name, kinds.pop() if len(kinds) == 1 else NO_RECTANGLE)


def _area(label: str, corners: Sequence[Sequence[float]], is_outline: bool = False) -> Object:
    """An object with the box around some corners, which may also be its outline."""
    points = np.array(corners, np.float64)
    box = [*points.min(axis=0).tolist(), *np.ptp(points, axis=0).tolist()]
    return Object(label, {}, box, [points.ravel().tolist()] if is_outline else [])


def group_shapes(shapes: Sequence[Shape], source: Source, name: str, category: str = NO_RECTANGLE) -> list[Object]:
    """Join the shapes of an image that have one key to an object; a point without one is of the only object around it.

    All points of an image without objects are one.

    Args:
        name: that of the image or the task, for notes.
        category: that of objects without a box.
    """
    objects: dict[Hashable, Object] = {}

    def add(key: Hashable, item: Object) -> None:
        old = objects.get(key, Object(item.category or category, {}))
        if old.points.keys() & item.points.keys():
            source.notes[_REPEATED].append(name)
            return
        label = item.category if item.box else old.category
        points = {**old.points, **item.points}
        objects[key] = Object(label, points, item.box or old.box, item.outline or old.outline)

    loose = [item for key, item in shapes if key is None and not item.category]
    for number, (key, item) in enumerate(shapes):
        if key is None and not item.category:
            continue
        is_another = key in objects and item.category and item.points and objects[key].points  # a second skeleton
        add(("shape", number) if key is None or is_another else key, item)
    if loose and not objects:
        objects[None] = Object(category, {})
    for item in loose:
        keys: list[Hashable] = []
        for margin in (0, MARGIN):
            keys = keys or [key for key, other in objects.items() if _is_around(other, item.points, margin)]
        if len(keys) == 1:
            add(keys[0], item)
        else:
            source.notes[_NO_OBJECT].append(name)
    # Objects of points alone get the only box around them that has none.
    for key, item in [*objects.items()]:
        boxes = [
            other
            for other, box in objects.items()
            if item.points and not item.box and box.box and not box.points and _is_around(box, item.points, MARGIN)
        ]
        if len(boxes) == 1:
            objects[key] = objects.pop(boxes[0])._replace(points=item.points)
    return list(objects.values())


def _is_around(item: Object, points: Mapping[str, Sequence[float]], margin: float) -> bool:
    """Whether points are in the box, extended by a share of its sides; always true without a box."""
    if item.box is None:
        return True
    low, sides = np.array(item.box).reshape(2, 2)
    places = np.array([place[:2] for place in points.values()])
    return bool((abs(places - low - sides / 2) <= (0.5 + margin) * sides).all())


def choose_names(
    objects_of: Mapping[Any, Sequence[Object]], source: Source, listed: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of the keypoints in order: those that are listed if they are all, COCO's if it has all, or else in the
    order of their appearance.

    ``DataError`` if nothing has keypoints, or which keypoints belong together is not known.
    """
    path, repeated = source.path, source.notes[_REPEATED]
    found = tuple(dict.fromkeys(name for items in objects_of.values() for item in items for name in item.points))
    if not found and not source.faults:
        raise DataError(f"{path} has no keypoints: label them as points with names, then export it again")
    count = len(set(repeated))
    if count > 1 and (2 * count > len(objects_of) or not are_few(count, len(objects_of))):
        raise DataError(
            f"{path} has objects with the same keypoint twice in {count} of {len(objects_of)} images, such as "
            f"{repeated[0]}: which belong together is not known; draw a rectangle around each object"
        )
    return next((names for names in (tuple(listed), COCO.file_names) if set(found) <= set(names)), found)


def _mend_names(objects_of: Mapping[str, Sequence[Object]], source: Source) -> dict[str, list[Object]]:
    """The objects with names as most of them have them, in which upper case, blanks and hyphens may differ.

    Names that few objects have are noted, as they may be mistyped.
    """
    people = [item for items in objects_of.values() for item in items if item.points]
    frequent: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for name, _ in Counter(name for item in people for name in item.points).most_common():
        spelled[name] = frequent.setdefault(re.sub(r"[\W_]", "", name.lower()), name)
    source.notes[_SPELLINGS] += [f"{name!r} is {other!r}" for name, other in spelled.items() if name != other]
    counts = Counter(spelled[name] for item in people for name in item.points)
    limit = max(1, RARE * len(people))
    source.notes[_RARE_NAMES] += [repr(name) for name, count in counts.items() if count <= limit < len(people) / 2]
    return {
        image: [item._replace(points={spelled[name]: place for name, place in item.points.items()}) for item in items]
        for image, items in objects_of.items()
    }
