"""Data sets in the YOLO-pose format of Ultralytics: a ``data.yaml``, and a text file of labels for every image.

A line of a label file is an object: class, centre x, centre y, width and height of its box; then x, y and, if the set
has it, the visibility of every keypoint. Coordinates are fractions of the displayed image. The labels of
``images/a/1.jpg`` are in ``labels/a/1.txt``; an image without such a file shows no object.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.coco import Entry
from posenet.annotations.importing.imported import ImportedAnnotations, Notes, Object, Source, to_coco
from posenet.annotations.twins import is_flip_idx
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import find_images
from posenet.messages import pluralize, to_single_line, truncate_for_message
from posenet.skeleton import COCO

BOX_COLUMNS = 5
"""Columns of a label line before the keypoints: class, x, y, width, height."""
MAX_FRACTION = 2.0
"""Boxes end a little outside their image in some data sets; larger numbers are not in fractions."""
FEW_CORNERS = 2
"""Boxes that may look like two corners in sets of any size."""
MIN_KEYPOINTS = 3
"""Labelled keypoints of an object that shows whether its box is two corners."""

_WITHOUT_FILE = "images without a label file, which show nobody"
_BOXES = "images with boxes without keypoints, which training ignores"


class MissingPlaceError(DataError):
    """A folder, a list or an image that a ``data.yaml`` names does not exist."""


class YoloFormat(NamedTuple):
    """What ``data.yaml`` says about the labels."""

    classes: dict[int, str]  # names by index
    keypoints: tuple[str, ...]
    has_visibility: bool


def import_yolo_pose(source: Source) -> ImportedAnnotations:
    """Read one split, such as train or val, of the data set of a ``data.yaml``.

    The names of the keypoints are those that are given, or those in ``kpt_names``, or COCO's if there are 17, or
    keypoint_1, keypoint_2 and so on.

    Raises:
        ConfigError: PyYAML is not installed.
        DataError: a file is missing or cannot be read, or is not of this format.
    """
    path = source.path
    if source.images is not None:
        raise DataError(f"{path} names the folders of its images; leave out --images DIR")
    content = _read_yaml(path)
    layout = _parse_format(content, path, source.keypoints)
    images = _find_images(content, path, source.split)
    flip_idx = content.get("flip_idx") or []
    if flip_idx and not is_flip_idx(flip_idx, len(layout.keypoints)):
        raise DataError(
            f"{path}: flip_idx {truncate_for_message(flip_idx)} is not a list of the twins of all "
            f"{len(layout.keypoints)} keypoints, counted from 0; correct it, or leave it out"
        )
    notes = Notes(list)

    objects_of: dict[Path, list[Object] | DataError] = {}
    for image in images:
        path_of_labels = label_path(image)
        try:
            objects_of[image] = own = _read_labels(path_of_labels, layout)
        except DataError as error:
            objects_of[image] = error
            continue
        notes[_WITHOUT_FILE] += [] if path_of_labels.exists() else [image.name]
        notes[_BOXES] += [] if all(item.points for item in own) else [image.name]
    imported = to_coco(
        objects_of,
        layout.keypoints,
        notes,
        twins=[(name, layout.keypoints[twin]) for name, twin in zip(layout.keypoints, flip_idx)],
        categories={index + 1: name for index, name in sorted(layout.classes.items())},
        whole=1,
    )
    if len(notes[_WITHOUT_FILE]) == len(imported.document["images"]):
        raise DataError(
            f"{path}: none of {len(images)} images has a label file, for example {label_path(images[0])}; give each "
            "label file the name of its image, and .txt"
        )
    people = imported.document["annotations"]
    if people and not any(any(person["keypoints"][2::3]) for person in people):
        raise DataError(f"no object of {path} has keypoints; its labels may be those of a set for detection")
    if (count := sum(map(_is_corners, people))) > max(FEW_CORNERS, len(people) / 2):
        raise DataError(
            f"{path}: {count} of {len(people)} boxes are around their keypoints only if they are two corners; "
            "write them as centre x, centre y, width, height"
        )
    return imported


def _is_corners(person: Entry) -> bool:
    """Whether what was read as centre and size of a box are two corners around all keypoints.

    In a box that is written correctly, all keypoints would be right of and below the centre.
    """
    points = np.reshape(person["keypoints"], (-1, 3))
    points = points[points[:, 2] > 0, :2]
    x, y, *second = person["bbox"]
    first = x + second[0] / 2, y + second[1] / 2
    is_inside = (points >= np.subtract(first, 1)) & (points <= np.add(second, 1))
    return len(points) >= MIN_KEYPOINTS and bool(is_inside.all())


def places_of_split(data_file: str | Path, split: str) -> list[str]:
    """What a ``data.yaml`` names as the images of a split, in the shortest way of writing; empty if it names none."""
    value = _read_yaml(Path(data_file)).get(split) or []
    return [os.path.normpath(str(place)) for place in (value if isinstance(value, list) else [value])]


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("PyYAML is not installed; pip install 'simplepose[yolo]'") from error
    try:
        content = yaml.safe_load(read_input(path).decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    # The constructors of values such as times raise errors of other kinds.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = to_single_line(str(error))
        raise DataError(f"{path} is not valid YAML ({reason}); give the data.yaml of a YOLO-pose data set") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a data.yaml; give that of a YOLO-pose data set")
    return content


def _parse_format(content: dict[str, Any], path: Path, given: Sequence[str] | None) -> YoloFormat:
    shape = content.get("kpt_shape")
    count, dimensions = shape if isinstance(shape, list) and len(shape) == 2 else (0, 0)
    if type(count) is not int or count < 1 or dimensions not in (2, 3):
        raise DataError(f"{path} has no kpt_shape [keypoints, 2 or 3]; give the data.yaml of a YOLO-pose data set")
    classes = content.get("names")
    if isinstance(classes, list):
        classes = dict(enumerate(classes))
    if not isinstance(classes, dict) or not all(type(index) is int and index >= 0 for index in classes):
        raise DataError(f"{path} has no names of the classes; write them as names: {{0: person}}")
    listed = content.get("kpt_names")
    if isinstance(listed, dict):  # by class; the keypoints are those of all classes
        listed = next(iter(listed.values()), None)
    default = COCO.file_names if count == len(COCO.file_names) else [f"keypoint_{n + 1}" for n in range(count)]
    names = tuple(map(str, given or (listed if isinstance(listed, list) else None) or default))
    what = "--keypoints NAMES" if given else "kpt_names"
    if len(names) != count:
        raise DataError(f"{path}: kpt_shape has {count} keypoints, {what} has {len(names)}; correct one of them")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path}: {what} has {twice[0]} more than once; give every keypoint a name of its own")
    return YoloFormat({index: str(name) for index, name in classes.items()}, names, dimensions == 3)


def _find_images(content: dict[str, Any], data_file: Path, split: str) -> list[Path]:
    """The images of a split, which is a folder, a text file of paths, or a list of both.

    Links are not followed: the labels are beside the link to an image, not beside the image.
    """
    value = content.get(split)
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not all(isinstance(place, str) and place for place in places) or not places:
        known = ", ".join(key for key in ("train", "val", "test") if content.get(key)) or "none"
        raise DataError(f"{data_file} has no split {split} (found: {known}); choose one by --split NAME")
    here = data_file.absolute().parent
    stated = str(content.get("path") or "").replace("\\", "/")
    roots = [here / stated, Path(stated), here]
    inputs = []
    try:
        for place in places:
            found = _find_place(place, roots, data_file)
            inputs += _read_list(found, roots) if found.suffix == ".txt" else [found]
        paths = sorted(path.absolute() for path in find_images(inputs, recursive=True))
    except (OSError, ValueError) as error:  # a name that is too long, has a null character or is not UTF-8
        raise DataError(f"{data_file}: the images of {split} cannot be listed ({error}); correct the paths") from error
    if not paths:
        raise DataError(f"{data_file}: the split {split} has no images; correct the paths")
    return paths


def _find_place(place: str, roots: Sequence[Path], source: Path) -> Path:
    """A folder, a list or an image; relative paths start at one of the folders ``roots``.

    The file may have been written elsewhere, so that the beginning of a path is not there: exports of Roboflow begin
    with one ``../`` too many, those of CVAT with the folder of an earlier format.
    """
    parts = PurePosixPath(place.replace("\\", "/")).parts
    ends = [Path(*parts[start:]) for start in range(len(parts)) if start < 2 or len(parts) - start >= 2]
    for root, end in itertools.product(roots, ends):
        if (root / end).exists():
            return root / end
    raise MissingPlaceError(f"{source}: {place} does not exist in {roots[0]}; correct path in the file")


def _read_list(path: Path, roots: Sequence[Path]) -> list[Path]:
    lines = read_input(path).decode("utf-8-sig").split("\n")
    return [_find_place(line.strip(), [path.parent, *roots], path) for line in lines if line.strip()]


def label_path(image: Path) -> Path:
    """The file with the labels of an image: the last folder ``images`` of its path becomes ``labels``."""
    parts = list(image.parts)
    folders = [index for index, part in enumerate(parts[:-1]) if part == "images"]
    if folders:
        parts[folders[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def _read_labels(path: Path, layout: YoloFormat) -> list[Object]:
    """The objects in a label file, if there is one. Objects of five numbers have no keypoints."""
    try:
        text = read_input(path).decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    objects = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := line.split():
                objects.append(_parse_label([float(word) for word in words], layout))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; correct the line or the data.yaml") from error
    return objects


def _parse_label(row: Sequence[float], layout: YoloFormat) -> Object:
    """An object of a label file; ``ValueError`` if the numbers are not one."""
    step = 3 if layout.has_visibility else 2
    columns = BOX_COLUMNS + len(layout.keypoints) * step
    if len(row) not in (BOX_COLUMNS, columns):
        count = pluralize(len(layout.keypoints), "keypoint")
        raise ValueError(f"{len(row)} numbers, {columns} are expected for {count} of kpt_shape")
    class_id, x, y, width, height = row[:BOX_COLUMNS]
    if class_id not in layout.classes:
        raise ValueError(f"class {class_id:g} has no name")
    points: dict[str, tuple[float, float, float]] = {}
    for name, start in zip(layout.keypoints, range(BOX_COLUMNS, len(row), step)):
        # Without visibility, a keypoint that is not labelled is at (0, 0), or negative.
        at = row[start], row[start + 1]
        visibility = row[start + 2] if layout.has_visibility else 2.0 * (min(at) >= 0 and max(at) > 0)
        if visibility > 0:
            points[name] = *at, visibility
    numbers = [x, y, width, height, *(value for point in points.values() for value in point[:2])]
    if max(map(abs, numbers)) > MAX_FRACTION:
        raise ValueError(f"{max(numbers, key=abs):g} is no fraction of the image, from 0 to 1")
    return Object(layout.classes[int(class_id)], points, (x - width / 2, y - height / 2, width, height))
