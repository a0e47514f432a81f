"""CVAT: "CVAT for images 1.1" and "CVAT for video 1.1", an XML file beside the folder images.

A skeleton is an object. Single points belong together by their group, or else by the box around them. Points that are
outside are not labelled, occluded ones are hidden. Several points in one shape are numbered keypoints of an object.
"""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from posenet.annotations.importing.grouping import (
    Object,
    Point,
    assign_points,
    box_of_corners,
    choose_names,
    join_boxes,
    number_categories,
    to_people,
)
from posenet.annotations.importing.image_files import ImageFiles, write_frames
from posenet.annotations.importing.imported import ImportedAnnotations, Labels, Notes, readable, to_coco
from posenet.annotations.importing.published_sets import MISSING_IMAGES
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import to_single_line

_INTERPOLATED = "frames with objects that CVAT has interpolated between two frames, which are used as they are"
_ANNOTATED_FRAME = re.compile(r"(\d+)$")

Shape = ElementTree.Element


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses a document type: CVAT writes none, and entities may grow without end."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a document type")


def parse_xml(path: Path) -> ElementTree.Element:
    """The root of an XML file; ``DataError`` if it is damaged or has a document type."""
    try:
        parser = ElementTree.XMLParser(target=_NoDoctype())
        parser.feed(read_input(path))
        root: ElementTree.Element = parser.close()
        return root
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        reason = to_single_line(str(error))
        raise DataError(f"{path} is not a whole XML file of CVAT ({reason}); export the task again") from error


def import_cvat(
    root: ElementTree.Element,
    path: Path,
    images: str | Path | None = None,
    keypoints: Sequence[str] | None = None,
    frames: Path | None = None,
) -> ImportedAnnotations:
    """Read the export of a task.

    Args:
        frames: where the frames of a video are written if it was exported without images.
    """
    notes = Notes(list)
    files = ImageFiles.near(path, images)
    with readable(path):
        if root.find("image") is not None:
            by_name = {image.attrib["name"]: list(image) for image in root.iter("image")}
            found, missing = files.require(list(by_name), path)
            notes[MISSING_IMAGES] += missing
            shapes_of = {file: by_name[name] for name, file in found.items()}
        else:
            shapes_of = _shapes_of_frames(root, path, files, frames, notes)
        objects_of = {file: _read_objects(shapes, notes, file.name) for file, shapes in shapes_of.items()}
    everything = [(file.name, item) for file, items in objects_of.items() for item in items]
    if not any(item.points for _, item in everything):
        raise DataError(f"{path} has no points and no skeletons; label keypoints with a skeleton, and export it again")
    categories = number_categories(item for _, item in everything)
    names = choose_names(everything, keypoints, notes)
    of_skeletons = _sublabels(root, categories)
    if not keypoints and set(of_skeletons) >= set(names):
        names = of_skeletons
    labels = Labels({number: name for name, number in categories.items()}, names, _edges(root, names))
    return to_coco(list(objects_of), lambda file: (to_people(objects_of[file], names, categories), ""), labels, notes)


def _shapes_of_frames(
    root: ElementTree.Element, path: Path, files: ImageFiles, frames: Path | None, notes: Notes
) -> dict[Path, list[Shape]]:
    """The shapes of every frame of a video, by its image: a track is split into its frames."""
    shapes: dict[int, list[Shape]] = {}
    interpolated: set[int] = set()
    for track in root.iter("track"):
        for shape in track:
            number = int(shape.attrib["frame"])
            if shape.get("outside") == "1" and shape.tag != "skeleton":
                continue
            shape.set("label", track.attrib["label"])
            if (group := track.get("group_id")) is not None:
                shape.set("group_id", group)
            shapes.setdefault(number, []).append(shape)
            if shape.get("keyframe") == "0":
                interpolated.add(number)
    if not shapes:
        raise DataError(f"{path} has no images and no tracks; label the task in CVAT, and export it again")
    notes[_INTERPOLATED] += [str(number) for number in sorted(interpolated)]
    images = {number: files.find(f"frame_{number:06d}{suffix}") for number in shapes for suffix in (".PNG",)}
    for suffix in (".png", ".jpg", ".jpeg"):
        images |= {number: files.find(f"frame_{number:06d}{suffix}") for number in images if images[number] is None}
    found = {number: image for number, image in images.items() if image is not None}
    if not found:
        video = _find_video(root, path, files)
        found = dict(write_frames(video, sorted(shapes), frames or path.with_name(f"{path.stem}_frames")))
    notes[MISSING_IMAGES] += [f"frame {number}" for number in shapes if number not in found]
    return {found[number]: shapes[number] for number in sorted(found)}


def _find_video(root: ElementTree.Element, path: Path, files: ImageFiles) -> Path:
    source = root.findtext(".//source") or ""
    for folder in (files.folder, path.parent):
        if source and (folder / Path(source).name).is_file():
            return folder / Path(source).name
    raise DataError(
        f"{path} has frames of {source or 'a video'}, which are not in {files.folder}; export the task with images, or "
        "name the folder of the video with images=DIR"
    )


def _read_objects(shapes: Iterable[Shape], notes: Notes, name: str) -> list[Object]:
    objects: dict[Hashable, Object] = {}
    skeletons: dict[Hashable, Object] = {}
    points: list[Point] = []
    for number, shape in enumerate(shapes):
        label = shape.attrib.get("label", "")
        group = shape.get("group_id") or "0"
        key: Hashable = ("shape", number) if group == "0" else group
        if shape.tag == "skeleton":
            own = {point.name: (point.x, point.y, point.visibility) for child in shape for point in _points(child)}
            if own:
                skeletons[key if key not in skeletons else ("shape", number)] = Object(label, None, own)
        elif shape.tag == "box":
            left, top, right, bottom = (float(shape.attrib[side]) for side in ("xtl", "ytl", "xbr", "ybr"))
            objects[key] = Object(label, (left, top, right - left, bottom - top), {})
        elif shape.tag == "polygon":
            corners = _corners(shape)
            outline = [[value for corner in corners for value in corner]]
            objects[key] = Object(label, box_of_corners(corners), {}, outline)
        elif shape.tag == "points":
            own_points = _points(shape)
            if len(own_points) > 1:
                own = {f"keypoint_{index}": (p.x, p.y, p.visibility) for index, p in enumerate(own_points, 1)}
                skeletons[key if key not in skeletons else ("shape", number)] = Object(label, None, own)
            elif own_points:
                points.append(own_points[0]._replace(owner=None if group == "0" else group))
    return join_boxes(skeletons, objects) + assign_points(objects, points, notes, name)


def _points(shape: Shape) -> list[Point]:
    """The labelled points of a shape of points."""
    if shape.tag != "points" or shape.get("outside") == "1":
        return []
    visibility = 1 if shape.get("occluded") == "1" else 2
    return [Point(shape.attrib["label"], x, y, visibility) for x, y in _corners(shape)]


def _corners(shape: Shape) -> list[list[float]]:
    """x, y of every point in "x,y;x,y"."""
    pairs = [list(map(float, pair.split(","))) for pair in shape.attrib["points"].split(";") if pair]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"points {shape.attrib['points'][:40]!r} are not pairs")
    return pairs


def _sublabels(root: ElementTree.Element, categories: Container[str]) -> tuple[str, ...]:
    """The names of the points of the skeletons of some categories, in the order of the task."""
    labels = [label for label in root.iter("label") if (label.findtext("parent") or None) in categories]
    return tuple(dict.fromkeys(label.findtext("name") or "" for label in labels))


def _edges(root: ElementTree.Element, names: Sequence[str]) -> list[list[int]] | None:
    """The edges of the skeletons, which the task has as a drawing; None if there are none."""
    edges: list[list[int]] = []
    for drawing in root.iter("svg"):
        text = drawing.text or ""
        name_of = {}
        for element in re.findall(r"<circle\b[^>]*>", text):
            name_of[_attribute(element, "data-node-id")] = _attribute(element, "data-label-name")
        for element in re.findall(r"<line\b[^>]*>", text):
            ends = [name_of.get(_attribute(element, f"data-node-{end}"), "") for end in ("from", "to")]
            if all(end in names for end in ends):
                edges.append([names.index(end) + 1 for end in ends])
    return edges or None


def _attribute(element: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', element)
    return found[1] if found else ""
