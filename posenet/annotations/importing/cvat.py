"""CVAT: "CVAT for images 1.1" and "CVAT for video 1.1", an XML file beside the folder images.

A skeleton is an object. Single points belong together by their group, or else by the box around them. Points that are
outside are not labelled, occluded ones are hidden. Several points in one shape are numbered keypoints of an object.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from xml.etree import ElementTree

from posenet.annotations.image_files import ImageFiles
from posenet.annotations.importing.frames import write_frames
from posenet.annotations.importing.grouping import Point, add_object, assign_points, box_of_corners, convert_objects
from posenet.annotations.importing.imported import MISSING_IMAGES, ImportedAnnotations, Notes, Object, Source, by_file
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import to_single_line

_INTERPOLATED = "frames with objects that CVAT has interpolated between two frames, which are used as they are"

Shape = ElementTree.Element


def parse_xml(path: Path) -> ElementTree.Element:
    """The root of an XML file; ``DataError`` if it is damaged. Expat refuses entities that grow without end."""
    try:
        return ElementTree.fromstring(read_input(path))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        reason = to_single_line(str(error))
        raise DataError(f"{path} is not a whole XML file of CVAT ({reason}); export the task again") from error


def import_cvat(source: Source) -> ImportedAnnotations:
    """Read the export of a task. The frames of a video that was exported without images are written to a folder."""
    root, notes = source.content, Notes(list)
    if root.find("image") is not None:
        by_name = {image.attrib["name"]: list(image) for image in root.iter("image")}
        shapes_of = by_file(by_name, source, notes)
    else:
        shapes_of = _shapes_of_frames(source, notes)
    objects_of = {file: _read_objects(shapes, notes, file.name) for file, shapes in shapes_of.items()}
    used = {item.category for items in objects_of.values() for item in items if item.points}
    labels = [label for label in root.iter("label") if label.findtext("parent") in used]
    listed = list(dict.fromkeys(label.findtext("name") or "" for label in labels))
    return convert_objects(objects_of, source, notes, listed=listed, edges=_read_edges(root))


def _shapes_of_frames(source: Source, notes: Notes) -> dict[Path, list[Shape]]:
    """The shapes of every frame of a video, by its image: a track is split into its frames."""
    root, path = source.content, source.path
    files = ImageFiles(Path(source.images or path.parent))
    shapes: dict[int, list[Shape]] = {}
    for track in root.iter("track"):
        for shape in track:
            if shape.get("outside") == "1" and shape.tag != "skeleton":
                continue
            shape.attrib |= {key: track.attrib[key] for key in ("label", "group_id") if key in track.attrib}
            number = int(shape.attrib["frame"])
            shapes.setdefault(number, []).append(shape)
            notes[_INTERPOLATED] += [str(number)] if shape.get("keyframe") == "0" else []
    if not shapes:
        raise DataError(f"{path} has no images and no tracks; label the task in CVAT, and export it again")
    numbers = sorted(shapes)
    found = {number: files.find(f"frame_{number:06d}.png") for number in numbers}  # or with another suffix
    if not any(found.values()):
        name = Path(root.findtext(".//source") or "a video").name
        video = next((place / name for place in (files.folder, path.parent) if (place / name).is_file()), None)
        if video is None:
            raise DataError(
                f"{path} has frames of {name}, which are not in {files.folder}; export the task with images, or name "
                "the folder of the video with --images DIR"
            )
        found |= write_frames(video, numbers, source.frames_folder)
    notes[MISSING_IMAGES] += [f"frame {number}" for number in numbers if not found[number]]
    return {image: shapes[number] for number, image in found.items() if image}


def _read_objects(shapes: Iterable[Shape], notes: Notes, name: str) -> list[Object]:
    objects: dict[Hashable, Object] = {}
    points: list[Point] = []
    for number, shape in enumerate(shapes):
        label = shape.attrib.get("label", "")
        group = shape.get("group_id", "0")
        key: Hashable = ("shape", number) if group == "0" else group
        if shape.tag == "box":
            left, top, right, bottom = (float(shape.attrib[side]) for side in ("xtl", "ytl", "xbr", "ybr"))
            add_object(objects, key, Object(label, {}, (left, top, right - left, bottom - top)))
        elif shape.tag == "polygon":
            corners = _corners(shape)
            outline = [[value for corner in corners for value in corner]]
            add_object(objects, key, Object(label, {}, box_of_corners(corners), outline))
        elif shape.tag in ("skeleton", "points"):
            own = [point for child in (shape if shape.tag == "skeleton" else [shape]) for point in _points(child)]
            if shape.tag == "points" and len(own) == 1:
                points.append(own[0]._replace(owner=None if group == "0" else group))
            elif own:
                names = [point.name for point in own]
                if shape.tag == "points":
                    names = [f"keypoint_{index}" for index in range(1, len(own) + 1)]
                values = {name: (point.x, point.y, point.visibility) for name, point in zip(names, own)}
                add_object(objects, key, Object(label, values))
    return assign_points(objects, points, notes, name)


def _points(shape: Shape) -> list[Point]:
    if shape.tag != "points" or shape.get("outside") == "1":
        return []
    visibility = 1 if shape.get("occluded") == "1" else 2
    return [Point(shape.attrib["label"], x, y, visibility) for x, y in _corners(shape)]


def _corners(shape: Shape) -> list[tuple[float, float]]:
    """x, y of every point in "x,y;x,y"."""
    pairs = [pair.split(",") for pair in shape.attrib["points"].split(";") if pair]
    return [(float(x), float(y)) for x, y in pairs]


def _read_edges(root: ElementTree.Element) -> list[tuple[str, str]]:
    edges = []
    for drawing in root.iter("svg"):
        nodes = re.findall(r"<(circle|line)\b([^>]*)>", drawing.text or "")
        parsed = [(kind, dict(re.findall(r'([\w-]+)="([^"]*)"', text))) for kind, text in nodes]
        name_of = {own.get("data-node-id"): own.get("data-label-name", "") for kind, own in parsed if kind == "circle"}
        for kind, own in parsed:
            if kind == "line":
                ends = [name_of.get(own.get(f"data-node-{end}"), "") for end in ("from", "to")]
                edges.append((ends[0], ends[1]))
    return edges
